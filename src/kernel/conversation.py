"""A conversation as values: calls that are born answered, steps, turns, transcripts."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, assert_never

from kernel.errors import Misuse
from kernel.source import ConversationId, Inbound, Source


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model asked for it.

    `id` is minted by the kernel (providers repeat, omit and double theirs); `wire_id` is what the provider said.
    `arguments` is None when `raw` is not a JSON object: such a call gets its result and is never run.
    """

    id: str
    name: str
    raw: str
    arguments: Mapping[str, Any] | None
    wire_id: str = ""


# -- outcomes: how a call ended ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ok:
    """The tool ran and said this."""

    value: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The tool ran and said that it could not. Not a crash."""

    reason: str


@dataclass(frozen=True, slots=True)
class BadArguments:
    """The arguments do not fit the schema; the tool was not run."""

    reason: str


@dataclass(frozen=True, slots=True)
class UnknownTool:
    """There is no such tool."""

    name: str


@dataclass(frozen=True, slots=True)
class Denied:
    """The policy, a guard or a hook said no; `rule` is whose word it was."""

    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class RateLimited:
    """A limit of this turn is used up."""

    reason: str


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The same call with the same arguments has been made too often in this turn."""

    times: int


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The tool crashed too often and rests; `seconds` until it may be tried again (0: until an operator acts)."""

    what: str
    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The tool did not end within its deadline."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Crashed:
    """The tool raised something it should not have. `where` (file:line) is for the operator, not for the model."""

    error: str
    where: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The call was called off, by `/stop`, a hook's reply, the turn's deadline or shutdown; `started` or before."""

    by: str
    started: bool = False


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The birth value. If it is ever read from disk, the process died while the call may have been running."""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The process died before the call began: it had no effect."""


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """Sent, but the platform did not confirm; it may have arrived and is never sent again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Expired:
    """Nobody approved in time."""


Outcome = (
    Ok
    | Failed
    | BadArguments
    | UnknownTool
    | Denied
    | RateLimited
    | Duplicate
    | Quarantined
    | TimedOut
    | Crashed
    | Cancelled
    | Interrupted
    | NotStarted
    | Unconfirmed
    | Expired
)
"""Closed: a new way to end is added here, and the type checker then names each place that forgot it."""


def kind_of(outcome: Outcome) -> str:
    """The outcome's word in records, logs and pictures: `ok`, `bad_arguments`, …"""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(outcome).__name__).lower()


def text_of(outcome: Outcome) -> str:  # noqa: C901 - one case an outcome is the point
    """The words that the model sees as the call's result."""
    match outcome:
        case Ok(value):
            return value or "(empty)"  # some servers refuse a result without content
        case Failed(reason):
            return f"failed: {reason}"
        case BadArguments(reason):
            return f"invalid arguments, not run: {reason}"
        case UnknownTool(name):
            return f"unknown tool: {name}"
        case Denied(rule, reason):
            return f"denied ({rule}): {reason}"
        case RateLimited(reason):
            return f"not run, limit reached: {reason}"
        case Duplicate(times):
            return f"not run: this exact call was already made {times} times in this turn; use the results you have"
        case Quarantined(what, seconds, why):
            rest = f"for {math.ceil(seconds)} more seconds" if seconds > 0 else "until an operator enables it"
            return f"not run: {what} is quarantined {rest} ({why}); do not retry, go on without it"
        case TimedOut(seconds):
            return f"timed out after {seconds:g} s; whether it had an effect is unknown"
        case Crashed(error, _):
            return f"the tool crashed: {error}"
        case Cancelled(by, started):
            return f"cancelled ({by}); " + ("it may have had part of its effect" if started else "it had no effect")
        case Interrupted():
            return "interrupted: the outcome is unknown; do not assume that it did or did not happen"
        case NotStarted():
            return "not started: the bot restarted before this call began; it had no effect"
        case Unconfirmed(reason):
            return f"sent, delivery not confirmed ({reason}); do not send it again"
        case Expired():
            return "denied: nobody approved in time"
        case _:
            assert_never(outcome)


def is_sound(outcome: Outcome) -> bool:
    """Whether its fields are what they are declared to be: plugins build outcomes too, and write what they like."""
    return all(type(getattr(outcome, one.name)) in _kinds(one.type) for one in fields(outcome))


def _kinds(declared: object) -> tuple[object, ...]:
    return (float, int) if declared is float else (declared,)


class Exchange:
    """A call and its one result: born `Interrupted`, settled once. Its owner is the step that holds it."""

    __slots__ = ("_outcome", "_settled", "_text", "call")

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self._outcome: Outcome = Interrupted()
        self._text = text_of(self._outcome)
        self._settled = False

    @property
    def outcome(self) -> Outcome:
        return self._outcome

    @property
    def text(self) -> str:
        """What the model sees, and what is stored: the same string."""
        return self._text

    @property
    def settled(self) -> bool:
        return self._settled

    def settle(self, outcome: Outcome, text: str | None = None) -> None:
        """Give the call its result. `text` only when read back from the record, whose words stand.

        Raises Misuse when it has one already.
        """
        if self._settled:
            raise Misuse(f"call {self.call.id} ({self.call.name}) settled twice")
        self._outcome = outcome
        self._text = text_of(outcome) if text is None else text
        self._settled = True

    def __repr__(self) -> str:
        return f"Exchange({self.call.name!r}, {self._outcome!r})"


# -- steps, turns, transcripts -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the server counted them; 0 where it did not say."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One answer of the model and everything it asked for."""

    number: int
    text: str
    exchanges: tuple[Exchange, ...] = ()
    reasoning: str | None = None
    usage: Usage = field(default_factory=Usage)


class Ending(StrEnum):
    """Every turn ends exactly once, in exactly one of these."""

    ANSWERED = "answered"
    SILENT = "silent"
    STOPPED = "stopped"
    FAILED = "failed"
    REFUSED = "refused"
    DROPPED = "dropped"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Joined:
    """A message that steered the running turn: the model reads it before its step of this number."""

    step: int
    inbound: Inbound


@dataclass(frozen=True, slots=True)
class Turn:
    """From a message to the end of the answer.

    `inbounds` opened it, `joined` came while it ran. `reply` is the final text's own exchange (call name `reply`):
    it leaves by the same door as a tool's effect, so that its intent and its delivery are recorded like theirs.
    `weight` is the estimate in tokens, set at the close.
    """

    id: str
    conversation: ConversationId
    source: Source
    inbounds: tuple[Inbound, ...]
    opened: float
    tainted: bool = False
    steps: tuple[Step, ...] = ()
    reply: Exchange | None = None
    ending: Ending | None = None
    reason: str = ""
    weight: int = 0
    joined: tuple[Joined, ...] = ()

    @property
    def heard(self) -> tuple[Inbound, ...]:
        """Every message of the turn, in order."""
        return (*self.inbounds, *(joined.inbound for joined in self.joined))

    @property
    def question(self) -> str:
        return "\n".join(inbound.text for inbound in self.heard)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Every call of its tools, in order; the reply is not among them."""
        return tuple(exchange for step in self.steps for exchange in step.exchanges)

    def joined_by(self, inbound: Inbound) -> "Turn":
        """With a message before its next step; others' words in it taint the turn."""
        joined = (*self.joined, Joined(len(self.steps), inbound))
        return replace(self, joined=joined, tainted=self.tainted or inbound.foreign)

    def with_step(self, step: Step) -> "Turn":
        return replace(self, steps=(*self.steps, step))

    def taint(self) -> "Turn":
        """Only ever raised: there is no way back."""
        return replace(self, tainted=True)

    def close(self, ending: Ending, reason: str = "") -> "Turn":
        if self.ending is not None:
            raise Misuse(f"turn {self.id} ended twice")
        return replace(self, ending=ending, reason=reason)


@dataclass(frozen=True, slots=True)
class Transcript:
    """The closed turns of a conversation, oldest first: as many as a window may need, not the whole record."""

    conversation: ConversationId
    turns: tuple[Turn, ...] = field(default=())
