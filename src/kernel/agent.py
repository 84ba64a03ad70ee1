"""The loop: turn → step → ask → act."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from kernel import words
from kernel.conversation import Ending, Exchange, Interrupted, Ok, Step, ToolCall, Turn, Unconfirmed
from kernel.errors import LedgerFault, ModelFault
from kernel.executor import Door, Executor, Run
from kernel.limits import Limits, Tally
from kernel.mailbox import PER_USER, steering
from kernel.output import Output
from kernel.ports import (
    Claim,
    Clock,
    Item,
    Model,
    Reply,
    Request,
    RequestedCall,
    Steered,
    StepOpened,
    TurnClosed,
    TurnOpened,
    TurnResumed,
    Unfinished,
)
from kernel.source import Inbound, least
from kernel.stages import Answer, Closed, Input, Prompt, Respond
from kernel.window import fit, weigh

log = logging.getLogger("qiwo.agent")


@dataclass(frozen=True, slots=True)
class Final:
    """What the turn comes to: the text for the chat, and the ending if it is sent."""

    text: str
    ending: Ending = Ending.ANSWERED
    reason: str = ""


class Agent:
    """Runs one turn from its messages to its end."""

    def __init__(
        self,
        model: Model,
        door: Door,
        executor: Executor,
        output: Output,
        clock: Clock,
        limits: Limits,
        context_tokens: int,
        mint: Callable[[], str],
        *,
        steers: bool = True,
    ) -> None:
        self._model = model
        self._door = door
        self._stages = door.stages
        self._executor = executor
        self._output = output
        self._clock = clock
        self._limits = limits
        self._context_tokens = context_tokens
        self._mint = mint
        self._steers = steers
        self.last_fault: ModelFault | None = None
        """What the model failed with last, since it last answered."""

    # -- birth and end ---------------------------------------------------------------------------------------

    async def open(self, claim: Claim, items: Sequence[Item], history: Sequence[Turn]) -> tuple[Run, Respond | None]:
        """Give birth to the turn: its subject, its taint and its messages are fixed here, from the envelopes."""
        inbounds, respond = await self._inputs(inbounds_of(items))
        return self._born(claim, items, inbounds, history), respond

    def stillborn(self, claim: Claim, items: Sequence[Item], ending: Ending, reason: str) -> Run:
        """A turn that ended before it began is on record all the same."""
        run = self._born(claim, items, inbounds_of(items), ())
        self.close(run, ending, reason)
        return run

    def take_up(self, claim: Claim, left: Unfinished) -> Run:
        """Go on with a turn that an earlier process left open; `recover` is next."""
        claim.commit(TurnResumed(left.turn.id))
        return Run(left.turn, claim, Tally(self._limits), set(left.begun))

    async def recover(self, run: Run) -> Respond | None:
        """Results stand, what is missing is filled in; a reply that was on its way is not sent again."""
        await self._executor.recover(run)
        run.tally.restart(len(run.turn.steps))
        if run.turn.steps:
            return None
        # A hook that answers in the model's place has its say again where the model was not asked yet.
        return (await self._inputs(run.turn.inbounds))[1]

    def abandon(self, claim: Claim, left: Unfinished, reason: str) -> Run:
        """End a turn that an earlier process left open too long ago."""
        run = Run(left.turn, claim, Tally(self._limits), set(left.begun))
        self._executor.abandon(run)
        self.close(run, Ending.INTERRUPTED, reason)
        return run

    def _born(self, claim: Claim, items: Sequence[Item], inbounds: Sequence[Inbound], history: Sequence[Turn]) -> Run:
        turn = Turn(
            id=self._mint(),
            conversation=claim.chat,
            source=replace(inbounds[-1].source, role=least(inbound.source.role for inbound in inbounds)),
            inbounds=tuple(inbounds),
            opened=self._clock.now(),
        )
        if foreign_in(inbounds) or tainted_by(history, turn):
            turn = turn.taint()
        claim.commit(TurnOpened(turn, tuple(item.key for item in items)))
        return Run(turn, claim, Tally(self._limits))

    async def run(self, run: Run, history: Sequence[Turn], respond: Respond | None = None) -> bool:
        """Answer the turn and close it; False when it paused for something more urgent, and is to be run again.

        Raises CancelledError, with everything settled but the turn still open.
        """
        run.outranked = False
        if tainted_by(history, run.turn):
            run.turn = run.turn.taint()
        if run.turn.reply is not None:
            self._close_replied(run, run.turn.reply)
            return True
        try:
            final = Final(respond.text) if respond else await self._answer(run, history)
            if final is None:
                return False
            ending = await self._output.reply(run, final.text)
        except LedgerFault:
            await self._unwritable(run)
            return True
        if ending is Ending.FAILED:
            self.close(run, ending, run.turn.reply.text if run.turn.reply else "")
        else:
            self.close(run, ending if final.ending is Ending.ANSWERED else final.ending, final.reason)
        return True

    def _close_replied(self, run: Run, reply: Exchange) -> None:
        """An earlier process got as far as the reply: as its delivery went, so the turn ends."""
        match reply.outcome:
            case Ok() | Unconfirmed():
                self.close(run, Ending.ANSWERED)
            case Interrupted():
                self.close(run, Ending.INTERRUPTED, "the bot went down while it sent the answer")
            case _:
                self.close(run, Ending.FAILED, reply.text)

    def close(self, run: Run, ending: Ending, reason: str = "") -> None:
        """End the turn, once."""
        turn = run.turn.close(ending, reason)
        run.turn = replace(turn, weight=weigh(turn))
        run.claim.commit(TurnClosed(run.turn, self._clock.now()))
        taken = self._clock.now() - turn.opened
        steps, calls = len(turn.steps), len(turn.exchanges)
        log.info(
            "turn %s in %s: %s in %.1f s, %d steps, %d calls", turn.id, run.claim.chat, ending, taken, steps, calls
        )

    async def after(self, run: Run) -> None:
        """Let the after_output hooks see how it ended."""
        turn = run.turn
        if turn.ending is not None:
            text = turn.reply.call.raw if turn.reply else ""
            await self._stages.after_output(Closed(turn.source, turn.id, turn.ending, text))

    # -- the loop --------------------------------------------------------------------------------------------

    async def _answer(self, run: Run, history: Sequence[Turn]) -> Final | None:
        """The final text, or the human sentence for why there is none; None when the turn pauses."""
        code, began = run.turn.id, self._clock.monotonic()
        try:
            async with self._clock.timeout(self._limits.turn_seconds - run.spent):
                return await self._loop(run, history)
        except TimeoutError:
            return Final(words.too_long(code), Ending.FAILED, f"longer than {self._limits.turn_seconds:g} s")
        except ModelFault as fault:
            log.warning("turn %s: the model failed: %s", code, fault)
            self.last_fault = fault
            return Final(words.fault(fault.kind, code), Ending.FAILED, str(fault))
        finally:
            run.spent += self._clock.monotonic() - began

    async def _loop(self, run: Run, history: Sequence[Turn]) -> Final | None:
        if run.turn.steps and run.turn.steps[-1].text and not run.turn.steps[-1].exchanges:
            return Final(run.turn.steps[-1].text)  # an earlier process had the answer already
        while not run.outranked:
            respond = await self._steer(run)
            if respond is not None:
                return Final(respond.text)
            closing = not run.tally.step()
            prompt = await self._stages.pre_action(Prompt(run.turn.source, self._system(closing)))
            if isinstance(prompt, Respond):
                return Final(prompt.text)
            tools = () if closing else self._door.open_tools(run.turn)
            window = fit(history, run.turn, self._context_tokens)
            reply = await self._ask(run, Request(prompt.system, window, tools))
            if reply is None:
                run.tally.restart(run.tally.steps - 1)  # the step was not taken
                return None
            self.last_fault = None
            final = await self._act(run, reply, closing=closing)
            if final is not None:
                return final
        return None

    async def _act(self, run: Run, reply: Reply, *, closing: bool) -> Final | None:
        """Record the step and run its calls; the final text if it is the last one."""
        exchanges = tuple(Exchange(self._minted(call)) for call in reply.calls)
        calls = tuple(exchange.call for exchange in exchanges)
        respond = await self._stages.post_action(Answer(run.turn.source, reply.text, calls))
        self._record(run, reply, exchanges)
        if respond is not None:
            self._executor.cancel(run, exchanges, "a hook answered instead")
            return Final(respond.text)
        if not exchanges:
            return self._said(run, reply)
        await self._executor.run(run, exchanges)
        return Final(reply.text or words.limit_reached(self._limits.steps)) if closing else None

    @staticmethod
    def _said(run: Run, reply: Reply) -> Final | None:
        """The answer. An empty one to a plain question is asked for once more; after tools it may be meant."""
        if reply.text.strip() or run.turn.exchanges:
            return Final(reply.text)
        if len(run.turn.steps) == 1:
            return None
        return Final(words.empty(run.turn.id), Ending.FAILED, "the model gave an empty answer twice")

    async def _steer(self, run: Run) -> Respond | None:
        """Let the messages join that the same person sent meanwhile: the model reads them before its next step."""
        if not self._steers:
            return None
        room = PER_USER - len(run.turn.joined)
        for item in steering(await run.claim.pending(), run.turn.source)[:room]:
            [inbound], respond = await self._inputs(inbounds_of([item]))
            if item not in await run.claim.pending():
                continue  # it was dropped while a hook looked at it
            run.turn = run.turn.joined_by(inbound)
            run.claim.commit(Steered(run.turn.id, run.turn.joined[-1]))
            if respond is not None:
                return respond
        return None

    async def _ask(self, run: Run, request: Request) -> Reply | None:
        """None when something more urgent broke the request off."""
        try:
            async with asyncio.timeout(None) as run.asking, aclosing(self._model.ask(request)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Reply):
                        return piece
        except TimeoutError:
            if not run.outranked:
                raise
            return None
        finally:
            run.asking = None
        raise AssertionError("a Model yields exactly one Reply")

    @staticmethod
    def _system(closing: bool) -> str:
        return f"{words.PERSONA}\n{words.CLOSING}" if closing else words.PERSONA

    def _minted(self, call: RequestedCall) -> ToolCall:
        return ToolCall(self._mint(), call.name, call.raw, call.arguments, call.wire_id)

    def _record(self, run: Run, reply: Reply, exchanges: tuple[Exchange, ...]) -> None:
        """The step is born with all its calls, in one batch; from here on each of them will get its result."""
        step = Step(len(run.turn.steps), reply.text, exchanges, reply.reasoning, reply.usage)
        run.turn = run.turn.with_step(step)
        run.claim.commit(StepOpened(run.turn.id, step))

    async def _inputs(self, inbounds: Sequence[Inbound]) -> tuple[list[Inbound], Respond | None]:
        seen: list[Inbound] = []
        respond: Respond | None = None
        for inbound in inbounds:
            match await self._stages.on_input(Input(inbound.source, inbound.text)):
                case Respond() as answer:
                    respond = answer
                    seen.append(inbound)
                case Input(text=text):
                    seen.append(inbound if text == inbound.text else replace(inbound, text=text))
        return seen, respond

    async def _unwritable(self, run: Run) -> None:
        """Say so without a record: the one thing that is sent unwritten, since silence would help nobody."""
        await self._output.say(run.turn.source, words.unwritable(run.turn.id))
        self.close(run, Ending.FAILED, "the record could not be written")


def inbounds_of(items: Sequence[Item]) -> list[Inbound]:
    """The messages among the items."""
    return [item.event for item in items if isinstance(item.event, Inbound)]


def foreign_in(inbounds: Sequence[Inbound]) -> bool:
    """A turn is tainted by others' words in its own messages."""
    return len({inbound.source.user for inbound in inbounds}) > 1 or any(inbound.foreign for inbound in inbounds)


def tainted_by(history: Sequence[Turn], turn: Turn) -> bool:
    """And by all that its window may hold."""
    return any(past.tainted or past.source.user != turn.source.user for past in history)
