"""What the kernel needs from the world, as protocols: tests bring fakes, adapters the real thing."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from kernel.conversation import Exchange, Joined, Step, Transcript, Turn, Usage
from kernel.source import ConversationId, Inbound, Part, Scene, Source
from kernel.tools import Tool

# -- time ----------------------------------------------------------------------------------------------------


class Clock(Protocol):
    """Two clocks: `monotonic` decides, `now` (wall, seconds since 1970) is only shown and stored."""

    def now(self) -> float: ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        """`async with clock.timeout(5)`: TimeoutError after five seconds of this clock; None never."""
        ...


# -- the model -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """What to ask: the system text, whole turns (the last one is the current), and the tools that may be called."""

    system: str
    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of visible text, as it streams in."""

    text: str


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A call as the provider worded it; `arguments` is None when `raw` is not a JSON object."""

    name: str
    raw: str
    arguments: Mapping[str, Any] | None
    wire_id: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """The whole answer. `finish` is `stop`, `tool_calls`, `length` or `content_filter`."""

    text: str
    calls: tuple[RequestedCall, ...] = ()
    finish: str = "stop"
    reasoning: str | None = None
    usage: Usage = field(default_factory=Usage)


class Model(Protocol):
    """A language model that can call tools."""

    @property
    def name(self) -> str: ...

    def ask(self, request: Request) -> AsyncGenerator[Chunk | Reply, None]:
        """Chunks as they come, then exactly one Reply. Raises ModelFault."""
        ...

    async def close(self) -> None: ...


# -- the record ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reset:
    """An inbox item that starts a new conversation; the old record stays."""

    source: Source
    key: str
    arrived: float


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A turn that an earlier process left open. `begun`: ids of calls whose effect may have begun.

    Calls without a result are not settled yet, except that what is on disk says `interrupted` of them already.
    `resumed` is how often it has been taken up before.
    """

    turn: Turn
    begun: frozenset[str] = frozenset()
    resumed: int = 0

    @property
    def source(self) -> Source:
        return self.turn.source

    @property
    def key(self) -> str:
        return unfinished_key(self.turn.id)


def unfinished_key(turn: str) -> str:
    """Of the inbox item that an open turn is to the next process."""
    return f"turn/{turn}"


Event = Inbound | Reset | Unfinished


@dataclass(frozen=True, slots=True)
class Item:
    """Something in a chat's inbox, in order of arrival. `key` names it once and for all."""

    chat: ConversationId
    key: str
    event: Event


@dataclass(frozen=True, slots=True)
class Accepted:
    """A message is in the inbox."""

    item: Item


@dataclass(frozen=True, slots=True)
class TurnOpened:
    """A turn began; it took the inbox items of these keys with it."""

    turn: Turn
    takes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnResumed:
    """A turn that an earlier process left open goes on, under its own identity."""

    turn: str


@dataclass(frozen=True, slots=True)
class Steered:
    """A message joined a running turn, before its next step; it is taken from the inbox by its key."""

    turn: str
    joined: Joined


@dataclass(frozen=True, slots=True)
class StepOpened:
    """The model's answer and all its calls, each born `interrupted`."""

    turn: str
    step: Step


@dataclass(frozen=True, slots=True)
class ReplyOpened:
    """The final text, as the intent to send it: its exchange is born `interrupted` (delivery unknown)."""

    turn: str
    exchange: Exchange
    at: float


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The intent: this call's effect may happen from now on. `rule` is the policy rule that let it through."""

    call: str
    rule: str
    at: float


@dataclass(frozen=True, slots=True)
class CallSettled:
    """The call's one result."""

    exchange: Exchange
    at: float


@dataclass(frozen=True, slots=True)
class TurnClosed:
    """The turn ended, once."""

    turn: Turn
    at: float


@dataclass(frozen=True, slots=True)
class ConversationReset:
    """From here on the chat's transcript is empty; `takes` is the inbox key of the request."""

    chat: ConversationId
    takes: str
    at: float


@dataclass(frozen=True, slots=True)
class TimerSet:
    """The item is accepted at `due` (wall seconds); replaces an earlier timer of its key."""

    item: Item
    due: float


@dataclass(frozen=True, slots=True)
class TimerDropped:
    """The timer has rung or is no longer wanted."""

    key: str


Entry = (
    Accepted
    | TurnOpened
    | TurnResumed
    | Steered
    | StepOpened
    | ReplyOpened
    | CallStarted
    | CallSettled
    | TurnClosed
    | ConversationReset
    | TimerSet
    | TimerDropped
)
"""A fact for the record. Entries are only ever added."""


@dataclass(frozen=True, slots=True)
class Case:
    """One turn with what the record knows beside it: when it closed (wall seconds), the rule behind each call."""

    turn: Turn
    closed: float | None
    rules: Mapping[str, str]


class Ledger(Protocol):
    """The record: append-only, and the only source of what is sent upstream."""

    def append(self, *entries: Entry) -> Awaitable[None]:
        """Queue one atomic batch, in the order of the calls; awaiting it waits until it is durable.

        Not awaiting is allowed: what a lost batch should have held is missing then, so that an awaited batch which
        builds on it fails too, before its effect. Raises LedgerFault.
        """
        ...

    async def transcript(self, chat: ConversationId, limit: int) -> Transcript:
        """The last `limit` closed turns since the chat's last reset, in the order in which they closed.

        Dropped ones are left out: nobody has read them.
        """
        ...

    async def newest(self, chat: ConversationId, user: str = "") -> Case | None:
        """The chat's turn that was opened last, be it open still, dropped or before a reset; of `user` if given."""
        ...

    async def unfinished(self) -> Sequence[Unfinished]:
        """Turns that are open; at the start of a process, those that the last one left so. Oldest first."""
        ...

    async def backlog(self) -> Sequence[Item]:
        """Items that were accepted and never taken by a turn, oldest first."""
        ...

    async def seen(self, limit: int) -> Sequence[str]:
        """The newest inbox keys, oldest first: what a restarted process must not accept again."""
        ...

    async def timers(self) -> Sequence[TimerSet]:
        """What `Dispatch.at` still owes, soonest first."""
        ...

    async def forget(self, before: float) -> int:
        """Delete turns that closed before that wall time, with all that is theirs; how many.

        A part at a time, the oldest first: there may be more until it returns 0.
        """
        ...

    async def close(self) -> None: ...


class Blobs(Protocol):
    """Files by content: what is too large for the record, or no text."""

    async def keep(self, place: str, data: bytes) -> None:
        """Write it where its content belongs (`kernel.media.place_of`), once, however often it comes.

        Raises LedgerFault.
        """
        ...

    async def clear(self, before: float, most: int) -> int:
        """Delete what was last kept before that wall time, and the oldest until no more than `most` bytes are left.

        Returns how many files went. Raises LedgerFault.
        """
        ...


# -- dispatch: who runs which chat ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sent:
    """Delivered, as far as the platform says; `receipt` is its message id, or ""."""

    receipt: str = ""


@dataclass(frozen=True, slots=True)
class NotSent:
    """Certainly not delivered."""

    reason: str


@dataclass(frozen=True, slots=True)
class SendUnknown:
    """It may have arrived: never sent again."""

    reason: str


Delivery = Sent | NotSent | SendUnknown


@dataclass(frozen=True, slots=True)
class Action:
    """One call of the platform's API, at an account. `answer` of the platform is in the result of the sender."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)


Sender = Callable[[Action], Awaitable[Delivery]]
"""Performs an action at the socket of one account; held by the host that holds the socket."""


class Claim(Protocol):
    """The right to run one chat, for as long as its drain runs."""

    @property
    def chat(self) -> ConversationId: ...

    @property
    def epoch(self) -> str:
        """A fencing token."""
        ...

    @property
    def cancelled(self) -> str:
        """Why the drain is being cancelled, or ""."""
        ...

    def check(self) -> None:
        """Called right before each effect; local and immediate. Raises ClaimLost."""
        ...

    async def pending(self) -> Sequence[Item]:
        """Accepted items that no turn has taken, in order."""
        ...

    def listen(self, heard: Callable[[Sequence[Item]], None]) -> None:
        """From now on have `heard` called for each item that comes in, in the loop, with all that waits; it is last."""
        ...

    def commit(self, *entries: Entry) -> Awaitable[None]:
        """`Ledger.append`, with the claim verified inside the batch. Raises ClaimLost, LedgerFault."""
        ...


class Dispatch(Protocol):
    """Where a message waits, who drains it, and which host speaks for an account."""

    async def accept(self, chat: ConversationId, event: Inbound | Reset) -> bool:
        """Put an event in the chat's inbox and wake its drain; False when its key was seen before."""
        ...

    async def serve(self, drain: Callable[[Claim], Awaitable[None]]) -> None:
        """Run drains, one a chat at a time, until cancelled."""
        ...

    async def at(self, when: float, chat: ConversationId, event: Inbound) -> None:
        """Accept the event at a wall time; a second call with its key replaces the first."""
        ...

    async def drop(self, key: str) -> None:
        """Forget a timer."""
        ...

    async def cancel(self, chat: ConversationId, reason: str) -> bool:
        """Cancel what runs for the chat; False when nothing does."""
        ...

    def attach(self, account: str, sender: Sender) -> AbstractAsyncContextManager[None]:
        """This host holds the account's socket. The newest attachment of an account speaks."""
        ...

    async def call(self, account: str, action: Action) -> Delivery:
        """Perform an action at the host that holds the account; NotSent when nobody does."""
        ...


# -- channels ------------------------------------------------------------------------------------------------


class Channel(Protocol):
    """A way out. It becomes the tools `output_send__NAME` and `output_send__NAME_help`."""

    @property
    def name(self) -> str: ...

    @property
    def carries(self) -> frozenset[str]:
        """The part kinds it can send: `text`, `at`, `reply`, `image`, …"""
        ...

    @property
    def help(self) -> str:
        """The format, for the model."""
        ...

    async def send(self, account: str, scene: Scene, parts: Sequence[Part]) -> Delivery:
        """Send one message. Never raises for what the platform says: that is a Delivery."""
        ...


class Gateway(Protocol):
    """What the kernel offers to the plugin that brings a platform in: only a built-in plugin gets it."""

    def is_operator(self, user: str, stamp: str = "") -> bool:
        """Whether this user is one of SUPERUSERS; `stamp` is the playground's proof for its own operator."""
        ...

    async def submit(self, inbound: Inbound) -> None:
        """Hand over a message; returns at once."""
        ...

    def typing(self, source: Source) -> None:
        """The source is writing in a private chat: what it has said so far may not be all."""
        ...

    def attach(self, account: str, sender: Sender) -> AbstractAsyncContextManager[None]: ...

    async def call(self, account: str, action: Action) -> Delivery: ...
