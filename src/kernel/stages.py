"""The seven stages of a turn, where plugins may look on and change what passes; a crashing hook is contained.

Hooks of one stage run in declared order, each seeing the former's value. They return values (`Proceed`, `Refuse`,
`Respond`, a new Outcome); none of these can drop a result. None changes nothing.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from kernel.conversation import Ending, Outcome, ToolCall, is_sound
from kernel.fence import Fence, Late, Raised, Returned, in_thread
from kernel.source import Source


class Stage(StrEnum):
    ON_INPUT = "on_input"
    PRE_ACTION = "pre_action"
    POST_ACTION = "post_action"
    BEFORE_TOOLCALL = "before_toolcall"
    AFTER_TOOLCALL = "after_toolcall"
    BEFORE_OUTPUT = "before_output"
    AFTER_OUTPUT = "after_output"


# -- what each stage shows to its hooks ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Input:
    """on_input: the question, before the turn opens."""

    source: Source
    text: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """pre_action: the system text, before each request."""

    source: Source
    system: str


@dataclass(frozen=True, slots=True)
class Answer:
    """post_action: what the model said and asks for."""

    source: Source
    text: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Before:
    """before_toolcall: a call with arguments that fit the schema, before the policy's last word."""

    source: Source
    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class After:
    """after_toolcall: a call that ran, and how it ended."""

    source: Source
    tool: str
    arguments: Mapping[str, Any]
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Outgoing:
    """before_output: the final text; an empty one sends nothing."""

    source: Source
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """after_output: the end of a turn, to look at only."""

    source: Source
    turn: str
    ending: Ending
    text: str


# -- what hooks may return -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Proceed:
    """Go on with this instead: a text (on_input, pre_action, before_output) or arguments (before_toolcall)."""

    value: str | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Refuse:
    """before_toolcall: the call is denied, and this is told to the model."""

    reason: str


@dataclass(frozen=True, slots=True)
class Respond:
    """on_input, pre_action, post_action: end the turn with this text; open calls are cancelled."""

    text: str


@dataclass(frozen=True, slots=True)
class Hook:
    """`own` hooks see only the calls of their own plugin's tools."""

    plugin: str
    stage: Stage
    function: Callable[..., Any]
    own: bool = False
    where: str = ""


@dataclass(frozen=True, slots=True)
class HookFault:
    """A hook crashed, timed out or returned nonsense; for the health registry and the log.

    `skipped`: it was not even run, since its plugin rests; an alarm, not one more crash.
    """

    hook: Hook
    error: str
    where: str
    stuck: bool = False
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class _Broken:
    fault: HookFault


class Stages:
    """Owns the hooks. `fault` is told of each crash; `resting` says why a plugin's hooks are not run, or ""."""

    def __init__(
        self,
        fence: Fence,
        seconds: float,
        *,
        fault: Callable[[HookFault], None],
        resting: Callable[[str], str],
    ) -> None:
        self._fence = fence
        self._seconds = seconds
        self._fault = fault
        self._resting = resting
        self._hooks: dict[Stage, tuple[Hook, ...]] = dict.fromkeys(Stage, ())

    def add(self, hook: Hook) -> Callable[[], None]:
        """Register at the end of its stage; the result takes it out, for calls that come later."""
        self._hooks[hook.stage] += (hook,)

        def undo() -> None:
            self._hooks[hook.stage] = tuple(each for each in self._hooks[hook.stage] if each is not hook)

        return undo

    async def on_input(self, seen: Input) -> Input | Respond:
        for hook in self._active(Stage.ON_INPUT):
            match await self._run(hook, seen):
                case Proceed(str() as text):
                    seen = replace(seen, text=text)
                case Respond(str()) as respond:
                    return respond
                case other:
                    self._expect_none(hook, other)
        return seen

    async def pre_action(self, seen: Prompt) -> Prompt | Respond:
        for hook in self._active(Stage.PRE_ACTION):
            match await self._run(hook, seen):
                case Proceed(str() as text):
                    seen = replace(seen, system=text)
                case Respond(str()) as respond:
                    return respond
                case other:
                    self._expect_none(hook, other)
        return seen

    async def post_action(self, seen: Answer) -> Respond | None:
        for hook in self._active(Stage.POST_ACTION):
            match await self._run(hook, seen):
                case Respond(str()) as respond:
                    return respond
                case other:
                    self._expect_none(hook, other)
        return None

    async def before_toolcall(self, seen: Before, owner: str) -> Before | Refuse:
        """The one stage where a broken or resting hook has the effect of a no: it may be the lock on the door."""
        for hook in self._hooks[Stage.BEFORE_TOOLCALL]:
            if hook.own and hook.plugin != owner:
                continue
            why = self._resting(hook.plugin)
            if why and not hook.own:
                self._fault(HookFault(hook, why, hook.where, skipped=True))
                continue
            if why:
                return Refuse(f"{hook.plugin}: {why}")
            mine = replace(seen, arguments=dict(seen.arguments))  # so that writing into them changes nothing
            match await self._run(hook, mine):
                case Proceed(Mapping() as arguments):
                    seen = replace(seen, arguments=dict(arguments))
                case Refuse(str() as reason):
                    return Refuse(f"{hook.plugin}: {reason}")
                case None:
                    pass
                case other:
                    self._expect_none(hook, other)
                    return Refuse(f"{hook.plugin}: its check of this call failed")
        return seen

    async def after_toolcall(self, seen: After, owner: str) -> Outcome:
        for hook in self._active(Stage.AFTER_TOOLCALL):
            if hook.own and hook.plugin != owner:
                continue
            result = await self._run(hook, seen)
            if isinstance(result, Outcome) and is_sound(result):
                seen = replace(seen, outcome=result)
            else:
                self._expect_none(hook, result)
        return seen.outcome

    async def before_output(self, seen: Outgoing) -> Outgoing:
        for hook in self._active(Stage.BEFORE_OUTPUT):
            match await self._run(hook, seen):
                case Proceed(str() as text):
                    seen = replace(seen, text=text)
                case other:
                    self._expect_none(hook, other)
        return seen

    async def after_output(self, seen: Closed) -> None:
        for hook in self._active(Stage.AFTER_OUTPUT):
            self._expect_none(hook, await self._run(hook, seen))

    def _active(self, stage: Stage) -> list[Hook]:
        return [hook for hook in self._hooks[stage] if not self._resting(hook.plugin)]

    async def _run(self, hook: Hook, seen: object) -> object:
        call = partial(hook.function, seen)
        if not inspect.iscoroutinefunction(hook.function):
            call = partial(in_thread, call)  # a blocking hook must not stop every chat, nor outlive its deadline
        match await self._fence.run(call, self._seconds):
            case Returned(value):
                return value
            case Raised() as raised:
                return _Broken(HookFault(hook, raised.summary, raised.where or hook.where))
            case Late(seconds, stuck):
                return _Broken(HookFault(hook, f"no answer within {seconds:g} s", hook.where, stuck))

    def _expect_none(self, hook: Hook, value: object) -> None:
        """Whatever a stage did not take: nothing, a crash, or a value that does not belong there."""
        match value:
            case None:
                pass
            case _Broken(fault):
                self._fault(fault)
            case _:
                error = f"returned {type(value).__name__}, which {hook.stage} does not take"
                self._fault(HookFault(hook, error, hook.where))
