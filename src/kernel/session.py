"""The drain of one conversation under its claim: one turn after the other, each ended exactly once."""

import asyncio
import logging
from collections import Counter, OrderedDict
from dataclasses import dataclass

from kernel import words
from kernel.agent import Agent
from kernel.conversation import Ending, Turn
from kernel.errors import ClaimLost, LedgerFault
from kernel.executor import Run
from kernel.output import Output
from kernel.ports import Claim, Clock, ConversationReset, Item, Ledger, Reset
from kernel.source import ConversationId
from kernel.stages import Respond
from kernel.window import MAX_TURNS

CACHED_CHATS = 1000
"""Transcripts kept in memory, the latest used; the others are read again from the record."""

log = logging.getLogger("qiwo.session")


@dataclass(frozen=True, slots=True)
class Past:
    """The last closed turns of a conversation."""

    turns: tuple[Turn, ...] = ()

    def add(self, turn: Turn) -> "Past":
        return Past((*self.turns, turn)[-MAX_TURNS:])


class Sessions:
    """Drains chats; owns what is running and the transcripts in memory."""

    def __init__(self, agent: Agent, output: Output, ledger: Ledger, clock: Clock) -> None:
        self._agent = agent
        self._output = output
        self._ledger = ledger
        self._clock = clock
        self._running: dict[ConversationId, Run] = {}
        self._past: OrderedDict[ConversationId, Past] = OrderedDict()
        self.endings: Counter[str] = Counter()
        """How the turns of this process ended."""

    def running(self, chat: ConversationId) -> Run | None:
        """The turn that runs in the chat, if one does."""
        return self._running.get(chat)

    def runs(self) -> tuple[Run, ...]:
        return tuple(self._running.values())

    async def drain(self, claim: Claim) -> None:
        """Take the chat's items, in order, until none is left. A reset goes before what waits."""
        while items := await claim.pending():
            item = next((item for item in items if isinstance(item.event, Reset)), items[0])
            try:
                await (self._reset(claim, item) if isinstance(item.event, Reset) else self._turn(claim, item))
            except LedgerFault:
                await self._output.say(item.event.source, words.unwritable())
                raise

    async def _reset(self, claim: Claim, item: Item) -> None:
        await claim.commit(ConversationReset(claim.chat, item.key, self._clock.now()))
        self._keep(claim.chat, Past())
        await self._output.say(item.event.source, "好，我们从头开始。之前的记录还在，只是不再参考。")

    async def _turn(self, claim: Claim, item: Item) -> None:
        try:
            past = await self._recall(claim.chat)
            run, respond = await self._agent.open(claim, [item], past.turns)
        except asyncio.CancelledError:
            if claim.cancelled != "shutdown":  # then it stays in the inbox, for the next process
                self._agent.stillborn(claim, [item], claim.cancelled)
            raise
        self._running[claim.chat] = run
        try:
            await self._finish(run, past, respond)
        finally:
            del self._running[claim.chat]
            self.endings[str(run.turn.ending)] += 1
            self._keep(claim.chat, past.add(run.turn))

    async def _finish(self, run: Run, past: Past, respond: Respond | None) -> None:
        """Run the turn to its one ending, and let the after_output hooks see which it was."""
        try:
            await self._agent.run(run, past.turns, respond)
        except asyncio.CancelledError:
            self._agent.close(run, *_ending_of(run.claim.cancelled))
            await self._agent.after(run)
            raise
        except ClaimLost:
            raise
        except Exception:  # a bug of ours: this chat must live on
            log.exception("turn %s failed", run.turn.id)
            await self._failed(run)
        await self._agent.after(run)

    async def _failed(self, run: Run) -> None:
        if run.turn.ending is None:
            self._agent.close(run, Ending.FAILED, "a bug in the kernel; see the log")
            await self._output.say(run.turn.source, words.bug(run.turn.id))

    async def _recall(self, chat: ConversationId) -> Past:
        past = self._past.get(chat)
        if past is None:
            past = Past((await self._ledger.transcript(chat, MAX_TURNS)).turns)
        self._keep(chat, past)
        return past

    def _keep(self, chat: ConversationId, past: Past) -> None:
        self._past[chat] = past
        self._past.move_to_end(chat)
        while len(self._past) > CACHED_CHATS:
            self._past.popitem(last=False)


def _ending_of(reason: str) -> tuple[Ending, str]:
    """Stopped by somebody, or cut off by the end of the process."""
    return (Ending.INTERRUPTED if reason == "shutdown" else Ending.STOPPED), reason
