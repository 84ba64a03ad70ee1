"""The one door: a tool runs only through `Executor.run`; every call that goes in comes out settled and recorded."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from kernel.conversation import (
    BadArguments,
    Cancelled,
    Crashed,
    Denied,
    Exchange,
    Failed,
    Interrupted,
    NotStarted,
    Outcome,
    Quarantined,
    TimedOut,
    Turn,
    UnknownTool,
)
from kernel.errors import ClaimLost, LedgerFault, ToolError
from kernel.fence import Fence, Late, Raised, Returned, attempt, describe, in_thread
from kernel.health import HealthRegistry, Permit, Refusal
from kernel.limits import Tally
from kernel.policy import Act, Decision, Policy
from kernel.ports import Blobs, CallSettled, CallStarted, Claim, Clock
from kernel.results import Told, kept, stored, told, trimmed
from kernel.source import Scene, SceneKind, conversation_of
from kernel.stages import After, Before, Refuse, Stages
from kernel.toolbox import Toolbox
from kernel.tools import Context, Risk, Tool, TurnFacts

REMEMBERED = 2000
"""Kinds of turn (role, chat, user, taint) whose tools are remembered."""


MOST_RAISES = 2
"""How much an often interrupted turn may rise, so that it ends some day."""


@dataclass(slots=True)
class Run:
    """The one mutable thing of a running turn, owned by its task: the turn so far and what it has used up."""

    turn: Turn
    claim: Claim
    tally: Tally
    begun: set[str] = field(default_factory=set)
    """Ids of calls whose effect may have begun."""
    spent: float = 0.0
    """Seconds of the turn's deadline that are used up."""
    interruptions: int = 0
    outranked: bool = False
    """Something more urgent waits: the turn pauses before its next request."""
    asking: asyncio.Timeout | None = None
    """The scope of the request that the model works on: the one thing that may be broken off."""

    @property
    def level(self) -> int:
        """What comes in must be more urgent than this to interrupt."""
        return max(inbound.urgency for inbound in self.turn.heard) + min(self.interruptions, MOST_RAISES)

    def interrupt(self) -> None:
        """Pause at the next safe point: now, if the model is being asked; never within an effect."""
        if not self.outranked:
            self.outranked = True
            if self.asking is not None:
                self.asking.reschedule(asyncio.get_running_loop().time())


@dataclass(frozen=True, slots=True)
class Admitted:
    """A call that may run: past schema, hooks, policy, limits and health."""

    exchange: Exchange
    tool: Tool
    arguments: Mapping[str, Any]
    permit: Permit
    rule: str


class Door:
    """Everything that is asked before a call runs; remembers which tools a kind of turn is shown."""

    def __init__(self, toolbox: Toolbox, policy: Callable[[], Policy], health: HealthRegistry, stages: Stages) -> None:
        self.toolbox = toolbox
        self.policy = policy
        self.health = health
        self.stages = stages
        self._known: tuple[Policy, tuple[Tool, ...]] | None = None
        self._shown: dict[object, tuple[Tool, ...]] = {}

    def open_tools(self, turn: Turn) -> tuple[Tool, ...]:
        """What the model is shown: what this turn's source might be allowed to call, and what does not rest."""
        chat = health_chat(turn)
        return tuple(tool for tool in self._allowed(turn) if self.health.look(tool.plugin, tool.name, chat) is None)

    def _allowed(self, turn: Turn) -> tuple[Tool, ...]:
        """The policy is pure: the same kind of turn gets the same answer while policy and tools are the same."""
        policy, tools, source = self.policy(), tuple(self.toolbox), turn.source
        if self._known != (policy, tools) or len(self._shown) > REMEMBERED:
            self._known, self._shown = (policy, tools), {}
        key = (source.role, source.scene, source.user, turn.tainted)
        found = self._shown.get(key)
        if found is None:
            found = self._shown[key] = tuple(
                tool for tool in tools if policy.shows(source, tool.name, tool.risk, tainted=turn.tainted)
            )
        return found


class Executor:
    """Admits, announces, runs and settles calls."""

    def __init__(self, door: Door, fence: Fence, clock: Clock, blobs: Blobs) -> None:
        self._door = door
        self._fence = fence
        self._clock = clock
        self._blobs = blobs

    async def run(self, run: Run, exchanges: Sequence[Exchange]) -> None:
        """Settle every exchange of a step, whatever happens.

        One after the other in call order; at once when every tool of the step declares `parallel`, but calls of one
        lane (sends on one channel) keep their order. Being cancelled, or a record that cannot be written, settles
        what is open and raises on.
        """
        reason = "an error in the kernel"
        try:
            for batch in self._batches(exchanges):
                await self._batch(run, batch)
        except LedgerFault:
            reason = "the record could not be written"
            raise
        except asyncio.CancelledError:
            reason = run.claim.cancelled or "the turn's deadline passed"
            raise
        finally:
            self.cancel(run, exchanges, reason)

    async def recover(self, run: Run) -> None:
        """Give what an earlier process left open its result; only what may run twice runs again."""
        if run.turn.reply is not None:
            self._complete(run, run.turn.reply)
        again = [exchange for exchange in run.turn.exchanges if self._may_run_again(run, exchange)]
        for exchange in run.turn.exchanges:
            if exchange not in again:
                self._count(run, exchange)
                self._complete(run, exchange)
        if again:
            await self.run(run, again)

    def abandon(self, run: Run) -> None:
        """Give open calls, and a reply that was on its way, the result that the crash left them with."""
        for exchange in (*run.turn.exchanges, *([run.turn.reply] if run.turn.reply else [])):
            self._complete(run, exchange)

    def _may_run_again(self, run: Run, exchange: Exchange) -> bool:
        tool = self._door.toolbox.get(exchange.call.name)
        harmless = tool is not None and (tool.idempotent or tool.risk is Risk.READ)
        return harmless and not exchange.settled and exchange.call.id in run.begun

    def _complete(self, run: Run, exchange: Exchange) -> None:
        if not exchange.settled:
            self._settle(run, exchange, Interrupted() if exchange.call.id in run.begun else NotStarted())

    def _count(self, run: Run, exchange: Exchange) -> None:
        """What began in an earlier process counts in the turn's limits, and taints it as it did there."""
        call, tool = exchange.call, self._door.toolbox.get(exchange.call.name)
        if call.id not in run.begun:
            return
        if tool is None or tool.taints:
            run.turn = run.turn.taint()
        if tool is not None and call.arguments is not None:
            run.tally.admit(tool, call.arguments)

    def cancel(self, run: Run, exchanges: Sequence[Exchange], by: str) -> None:
        """Settle what is still open."""
        for exchange in exchanges:
            if not exchange.settled:
                self._settle(run, exchange, Cancelled(by, started=exchange.call.id in run.begun))

    def _settle(self, run: Run, exchange: Exchange, outcome: Outcome) -> None:
        """The only place where a call gets its result, and with it its row."""
        exchange.settle(trimmed(outcome))
        run.claim.commit(CallSettled(exchange, self._clock.now()))

    def _batches(self, exchanges: Sequence[Exchange]) -> list[Sequence[Exchange]]:
        tools = [self._door.toolbox.get(exchange.call.name) for exchange in exchanges]
        if all(tool is not None and tool.parallel for tool in tools):
            return [exchanges]
        return [[exchange] for exchange in exchanges]

    async def _batch(self, run: Run, batch: Sequence[Exchange]) -> None:
        with ExitStack() as permits:
            admitted = await self._admit_all(run, batch, permits)
            await self._announce(run, admitted)
            lanes = _lanes(admitted)
            if len(lanes) == 1:
                await self._lane(run, lanes[0])
            else:
                await _side_by_side([self._lane(run, lane) for lane in lanes])

    # -- admission -------------------------------------------------------------------------------------------

    async def _admit_all(self, run: Run, batch: Sequence[Exchange], permits: ExitStack) -> list[Admitted]:
        admitted = []
        for exchange in batch:
            match await self._admit(run, exchange):
                case Admitted() as one:
                    permits.enter_context(one.permit)  # leaving unsettled gives it back
                    admitted.append(one)
                case outcome:
                    self._settle(run, exchange, outcome)
        return admitted

    async def _admit(self, run: Run, exchange: Exchange) -> Admitted | Outcome:
        call, turn = exchange.call, run.turn
        tool = self._door.toolbox.get(call.name)
        if tool is None:
            return UnknownTool(call.name)
        if call.arguments is None:
            return BadArguments("they are not one JSON object")
        policy = self._door.policy()
        if not policy.shows(turn.source, tool.name, tool.risk, tainted=turn.tainted):
            # Whatever the arguments: whoever may never call it does not get its validators and hooks to run either.
            verdict = policy.decide(turn.source, Act(tool.name, tool.risk, tainted=turn.tainted))
            return Denied(verdict.rule, verdict.sentence)
        arguments = self._validated(tool, call.arguments)
        if isinstance(arguments, dict):
            arguments = await self._after_hooks(turn, tool, arguments)
        if not isinstance(arguments, dict):
            return arguments
        act = Act(tool.name, tool.risk, here=self._here(turn, tool, arguments), tainted=turn.tainted)
        verdict = policy.decide(turn.source, act)
        if verdict.decision is not Decision.ALLOW:
            return Denied(verdict.rule, verdict.sentence)
        limited = run.tally.admit(tool, call.arguments)
        if limited is not None:
            return limited
        deadline = self._deadline(run, tool)
        permit = self._door.health.admit(tool.plugin, tool.name, health_chat(turn), turn.source.user, deadline=deadline)
        if isinstance(permit, Refusal):
            return Quarantined(permit.what, permit.seconds, permit.why)
        return Admitted(exchange, tool, arguments, permit, verdict.rule)

    def _validated(self, tool: Tool, raw: Mapping[str, Any]) -> dict[str, Any] | Outcome:
        """A validator can be the plugin's own code: what it raises beside a ValueError is a crash of the plugin."""
        match attempt(partial(tool.validate, raw)):
            case Returned(arguments):
                return cast("dict[str, Any]", arguments)
            case Raised(ValueError() as error):
                return BadArguments(str(error))
            case Raised() as raised:
                self._door.health.crashed(tool.plugin, tool.name, raised.summary, raised.where)
                return Crashed(raised.summary, raised.where)

    async def _after_hooks(self, turn: Turn, tool: Tool, arguments: dict[str, Any]) -> dict[str, Any] | Outcome:
        """What before_toolcall made of the arguments; changed ones must fit the schema again."""
        seen = await self._door.stages.before_toolcall(Before(turn.source, tool.name, arguments), tool.plugin)
        if isinstance(seen, Refuse):
            return Denied("hook", seen.reason)
        return arguments if seen.arguments is arguments else self._validated(tool, seen.arguments)

    @staticmethod
    def _here(turn: Turn, tool: Tool, arguments: Mapping[str, Any]) -> bool:
        """Whether the call stays in the chat that asked. A target that cannot be read is elsewhere."""
        if tool.target is None:
            return True
        said = attempt(partial(str, arguments[tool.target]))
        target = str(said.value) if isinstance(said, Returned) and arguments[tool.target] is not None else ""
        return isinstance(said, Returned) and (target == "" or same_scene(target, turn.source.scene, tool.target))

    def _deadline(self, run: Run, tool: Tool) -> float:
        return tool.timeout or run.tally.limits.tool_seconds

    # -- the effect ------------------------------------------------------------------------------------------

    async def _announce(self, run: Run, admitted: Sequence[Admitted]) -> None:
        """Intent before effect: durable before anything but reading begins."""
        if not admitted:
            return
        now = self._clock.now()
        new = [one for one in admitted if one.exchange.call.id not in run.begun]
        durable = run.claim.commit(*(CallStarted(one.exchange.call.id, one.rule, now) for one in new))
        if any(one.tool.risk is not Risk.READ for one in admitted):
            await durable

    async def _lane(self, run: Run, lane: Sequence[Admitted]) -> None:
        for one in lane:
            result = await self._call(run, one)
            outcome = result.outcome
            try:
                outcome = await stored(result, self._blobs.keep)
                seen = After(run.turn.source, one.tool.name, one.arguments, outcome)
                outcome = await self._door.stages.after_toolcall(seen, one.tool.plugin)
                outcome = await kept(outcome, self._blobs.keep)
            finally:
                self._settle(run, one.exchange, outcome)
                if one.tool.taints:
                    run.turn = run.turn.taint()

    async def _call(self, run: Run, one: Admitted) -> Told:
        try:
            run.claim.check()
        except ClaimLost:  # the next commit says so too; here it must not become an effect
            return Told(Cancelled("another host runs this chat now"))
        run.begun.add(one.exchange.call.id)
        deadline = self._deadline(run, one.tool)
        match await self._fence.run(partial(self._invoke, run, one), deadline):
            case Returned(result):
                one.permit.succeeded()
                return cast("Told", result)
            case Raised(ToolError() as error):
                one.permit.tool_error()
                said = attempt(partial(str, error))
                return Told(Failed(str(said.value) if isinstance(said, Returned) else type(error).__name__))
            case Raised(error, where):
                one.permit.crashed(describe(error), where)
                return Told(Crashed(describe(error), where))
            case Late(seconds, stuck):
                one.permit.crashed(f"no answer within {seconds:g} s", one.tool.where, fatal=stuck)
                return Told(TimedOut(seconds))

    async def _invoke(self, run: Run, one: Admitted) -> Told:
        """The call and the reading of its result: both are the plugin's code."""
        arguments = dict(one.arguments)
        if one.tool.context_name is not None:
            arguments[one.tool.context_name] = self._context(run, one)
        call = partial(one.tool.function, **arguments)
        value = call() if inspect.iscoroutinefunction(one.tool.function) else in_thread(call)
        while inspect.isawaitable(value):  # twice when a plain wrapper hid a coroutine function from its caller
            value = await value
        return told(value)

    # -- what a tool may know --------------------------------------------------------------------------------

    def _context(self, run: Run, one: Admitted) -> Context:
        turn = run.turn
        return Context(turn.source, turn.conversation, turn.id, one.exchange.call.id, partial(self.facts, run))

    def facts(self, run: Run) -> TurnFacts:
        """Limits left, and the tools that this turn may not call now, each with the reason."""
        turn, policy = run.turn, self._door.policy()
        denied, quarantined = {}, {}
        for tool in self._door.toolbox:
            if not policy.shows(turn.source, tool.name, tool.risk, tainted=turn.tainted):
                act = Act(tool.name, tool.risk, tainted=turn.tainted)
                denied[tool.name] = policy.decide(turn.source, act).sentence
            elif refusal := self._door.health.look(tool.plugin, tool.name, health_chat(turn)):
                quarantined[tool.name] = refusal.why
        return TurnFacts(run.tally.left, denied, quarantined)


def health_chat(turn: Turn) -> str:
    """The key under which crashes count for a chat: the scene, however its members' threads are kept apart."""
    return conversation_of(turn.source)


async def _side_by_side(lanes: Sequence[Coroutine[Any, Any, None]]) -> None:
    """All at once; if one breaks, the others are cancelled before it is told."""
    try:
        async with asyncio.TaskGroup() as group:
            for lane in lanes:
                group.create_task(lane)
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None


def _lanes(admitted: Sequence[Admitted]) -> list[list[Admitted]]:
    """Calls that may run side by side; those on one lane keep their order."""
    lanes: dict[object, list[Admitted]] = {}
    for one in admitted:
        lanes.setdefault(one.tool.lane or id(one), []).append(one)
    return list(lanes.values())


def same_scene(target: str, scene: Scene, named: str = "") -> bool:
    """`group:10001` or the bare id; ids are compared as numbers where they are numbers.

    A bare id is of the kind that its argument's name says (`group_id`, `user`), if it says one.
    """
    kind, _, ident = target.strip().rpartition(":")
    if not kind:
        kind = "group" if "group" in named else "private" if named.startswith(("user", "private", "friend")) else ""
    mine = SceneKind.PRIVATE if scene.kind is SceneKind.TEMP and kind == "private" else scene.kind
    return kind in ("", mine) and _canonical(ident) == _canonical(scene.id)


def _canonical(ident: str) -> str:
    """As a number, without a number's limits."""
    ident = ident.strip()
    return (ident.lstrip("0") or "0") if ident.isdecimal() else ident
