"""The loop: turn → step → ask → act."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from kernel import words
from kernel.conversation import Ending, Exchange, Step, ToolCall, Turn
from kernel.errors import LedgerFault, ModelFault
from kernel.executor import Door, Executor, Run
from kernel.limits import Limits, Tally
from kernel.output import Output
from kernel.ports import (
    Claim,
    Clock,
    Item,
    Model,
    Reply,
    Request,
    RequestedCall,
    StepOpened,
    TurnClosed,
    TurnOpened,
)
from kernel.source import Inbound, least
from kernel.stages import Answer, Closed, Input, Prompt, Respond
from kernel.window import fit, weigh


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

    async def open(self, claim: Claim, items: Sequence[Item], history: Sequence[Turn]) -> tuple[Run, Respond | None]:
        """Give birth to the turn: its subject, its taint and its messages are fixed here, from the envelopes."""
        inbounds, respond = await self._inputs(inbounds_of(items))
        return self._born(claim, items, inbounds, history), respond

    def stillborn(self, claim: Claim, items: Sequence[Item], reason: str) -> None:
        """A turn that was stopped before it began is on record all the same."""
        self.close(self._born(claim, items, inbounds_of(items), ()), Ending.STOPPED, reason)

    def _born(self, claim: Claim, items: Sequence[Item], inbounds: Sequence[Inbound], history: Sequence[Turn]) -> Run:
        turn = Turn(
            id=self._mint(),
            conversation=claim.chat,
            source=replace(inbounds[-1].source, role=least(inbound.source.role for inbound in inbounds)),
            inbounds=tuple(inbounds),
            opened=self._clock.now(),
            tainted=tainted_from_start(inbounds, history),
        )
        claim.commit(TurnOpened(turn, tuple(item.key for item in items)))
        return Run(turn, claim, Tally(self._limits))

    async def run(self, run: Run, history: Sequence[Turn], respond: Respond | None = None) -> None:
        """Answer the turn and close it. Raises CancelledError, with everything settled but the turn still open."""
        try:
            final = Final(respond.text) if respond else await self._answer(run, history)
            ending = await self._output.reply(run, final.text)
        except LedgerFault:
            await self._unwritable(run)
            return
        if ending is Ending.FAILED:
            self.close(run, ending, run.turn.reply.text if run.turn.reply else "")
        else:
            self.close(run, ending if final.ending is Ending.ANSWERED else final.ending, final.reason)

    def close(self, run: Run, ending: Ending, reason: str = "") -> None:
        """End the turn, once."""
        turn = run.turn.close(ending, reason)
        run.turn = replace(turn, weight=weigh(turn))
        run.claim.commit(TurnClosed(run.turn, self._clock.now()))

    async def after(self, run: Run) -> None:
        """Let the after_output hooks see how it ended."""
        turn = run.turn
        if turn.ending is not None:
            text = turn.reply.call.raw if turn.reply else ""
            await self._stages.after_output(Closed(turn.source, turn.id, turn.ending, text))

    # -- the loop --------------------------------------------------------------------------------------------

    async def _answer(self, run: Run, history: Sequence[Turn]) -> Final:
        """The final text, or the human sentence for why there is none."""
        code = run.turn.id
        try:
            async with self._clock.timeout(self._limits.turn_seconds):
                return await self._loop(run, history)
        except TimeoutError:
            return Final(words.too_long(code), Ending.FAILED, f"longer than {self._limits.turn_seconds:g} s")
        except ModelFault as fault:
            return Final(words.fault(fault.kind, code), Ending.FAILED, str(fault))

    async def _loop(self, run: Run, history: Sequence[Turn]) -> Final:
        while True:
            closing = not run.tally.step()
            prompt = await self._stages.pre_action(Prompt(run.turn.source, self._system(closing)))
            if isinstance(prompt, Respond):
                return Final(prompt.text)
            tools = () if closing else self._door.open_tools(run.turn)
            window = fit(history, run.turn, self._context_tokens)
            reply = await self._ask(Request(prompt.system, window, tools))
            exchanges = tuple(Exchange(self._minted(call)) for call in reply.calls)
            calls = tuple(exchange.call for exchange in exchanges)
            respond = await self._stages.post_action(Answer(run.turn.source, reply.text, calls))
            self._record(run, reply, exchanges)
            if respond is not None:
                self._executor.cancel(run, exchanges, "a hook answered instead")
                return Final(respond.text)
            if not exchanges:
                return Final(reply.text)
            await self._executor.run(run, exchanges)
            if closing:
                return Final(reply.text or words.limit_reached(self._limits.steps))

    async def _ask(self, request: Request) -> Reply:
        async with aclosing(self._model.ask(request)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Reply):
                    return piece
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


def tainted_from_start(inbounds: Sequence[Inbound], history: Sequence[Turn]) -> bool:
    """A turn is tainted by others' words in its own messages, and by all that its window may hold."""
    users = {inbound.source.user for inbound in inbounds}
    foreign = len(users) > 1 or any(inbound.foreign for inbound in inbounds)
    return foreign or any(turn.tainted or turn.source.user not in users for turn in history)
