"""The drain of one conversation under its claim: what runs when, and that every turn ends exactly once."""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from kernel import words
from kernel.agent import Agent
from kernel.conversation import Ending, Turn
from kernel.errors import ClaimLost, LedgerFault
from kernel.executor import Run
from kernel.mailbox import Take, Wait, Waits, next_of, overflow, urgency_of
from kernel.output import Output
from kernel.ports import Claim, Clock, ConversationReset, Item, Ledger, Reset, Unfinished
from kernel.source import ConversationId, Inbound
from kernel.stages import Respond
from kernel.window import MAX_TURNS

CACHED_CHATS = 1000
"""Transcripts kept in memory, the latest used; the others are read again from the record."""

STALE = 600.0
"""Seconds after which a turn that was cut off is not taken up any more: nobody waits for its answer."""

MOST_RESUMED = 3
"""Times that a turn is taken up after the process died in it: it may be what kills the process."""

DEEPEST = 4
"""Turns of one chat that may be interrupted at the same time."""

log = logging.getLogger("qiwo.session")


@dataclass(frozen=True, slots=True)
class Past:
    """The last closed turns of a conversation."""

    turns: tuple[Turn, ...] = ()

    def add(self, turn: Turn) -> "Past":
        return Past((*self.turns, turn)[-MAX_TURNS:])


class Sessions:
    """Drains chats; owns what is in progress and the transcripts in memory."""

    def __init__(self, agent: Agent, output: Output, ledger: Ledger, clock: Clock, waits: Waits) -> None:
        self.agent = agent
        self.output = output
        self.clock = clock
        self.waits = waits
        self._ledger = ledger
        self._drains: dict[ConversationId, Drain] = {}
        self._past: OrderedDict[ConversationId, Past] = OrderedDict()
        self.endings: Counter[str] = Counter()
        """How the turns of this process ended."""

    def in_progress(self, chat: ConversationId) -> tuple[Run, ...]:
        """The turn that runs in the chat, if one does, and those that it interrupted."""
        drain = self._drains.get(chat)
        return drain.runs if drain else ()

    def runs(self) -> tuple[Run, ...]:
        return tuple(run for drain in self._drains.values() for run in drain.runs)

    def typing(self, chat: ConversationId) -> None:
        """The peer of a private chat is writing: what he has said so far may not be all."""
        drain = self._drains.get(chat)
        if drain is not None:
            drain.typed = self.clock.now()

    async def drain(self, claim: Claim) -> None:
        """Work the chat's items until none is left."""
        drain = self._drains[claim.chat] = Drain(self, claim)
        try:
            await drain.work()
        finally:
            del self._drains[claim.chat]

    # -- what the drains share -------------------------------------------------------------------------------

    async def recall(self, chat: ConversationId) -> Past:
        past = self._past.get(chat)
        if past is None:
            past = Past((await self._ledger.transcript(chat, MAX_TURNS)).turns)
        self.keep(chat, past)
        return past

    def forget(self) -> None:
        """Turns have left the record: read again what is still there."""
        self._past.clear()

    def keep(self, chat: ConversationId, past: Past) -> None:
        self._past[chat] = past
        self._past.move_to_end(chat)
        while len(self._past) > CACHED_CHATS:
            self._past.popitem(last=False)

    def ended(self, run: Run) -> None:
        """Count the ending, and remember the turn if its chat is remembered."""
        self.endings[str(run.turn.ending)] += 1
        past = self._past.get(run.turn.conversation)
        if past is not None and run.turn.ending is not Ending.DROPPED:  # a flood must not wash out the rest
            self.keep(run.turn.conversation, past.add(run.turn))


class Drain:
    """One conversation being worked, for as long as there is something to work on."""

    def __init__(self, sessions: Sessions, claim: Claim) -> None:
        self._sessions = sessions
        self._agent = sessions.agent
        self._clock = sessions.clock
        self._claim = claim
        self._current: Run | None = None
        self._paused: list[Run] = []
        self._taking: tuple[Item, ...] = ()
        self._arrived = asyncio.Event()
        self._dropped: list[Run] = []
        self.typed = 0.0

    @property
    def runs(self) -> tuple[Run, ...]:
        return (*self._paused, *((self._current,) if self._current else ()))

    async def work(self) -> None:
        """Take what is most urgent, first come first served, until nothing waits and nothing is paused."""
        self._claim.listen(self._heard)
        try:
            self._shed(await self._claim.pending())
            while True:
                items = await self._claim.pending()
                if self._paused and not any(urgency_of(item.event) > self._paused[-1].level for item in items):
                    await self._resume(self._paused.pop())
                elif items:
                    await self._carry_out(await self._batch(items))
                else:
                    return
                await self._tell_dropped()
        except asyncio.CancelledError:
            await self._stopped()
            raise

    # -- arrivals --------------------------------------------------------------------------------------------

    def _heard(self, items: Sequence[Item]) -> None:
        self._shed(items)
        self._arrived.set()
        run = self._current
        if run is not None and urgency_of(items[-1].event) > run.level and len(self._paused) < DEEPEST:
            run.interrupt()

    def _shed(self, items: Sequence[Item]) -> None:
        """Drop what is too much, on record."""
        for item in overflow(items, {item.key for item in self._taking}):
            run = self._agent.stillborn(self._claim, [item], Ending.DROPPED, "too many messages were waiting")
            self._dropped.append(run)

    async def _tell_dropped(self) -> None:
        """Once for all that was dropped meanwhile, to each whose it was."""
        dropped, self._dropped = self._dropped, []
        times = Counter(run.turn.source.user for run in dropped)
        for run in dropped:
            self._sessions.ended(run)
            await self._agent.after(run)
            if count := times.pop(run.turn.source.user, 0):
                await self._sessions.output.say(run.turn.source, words.dropped(count))

    async def _batch(self, items: Sequence[Item]) -> tuple[Item, ...]:
        """What the next turn is made of, once its sender seems to have said it all."""
        began = self._clock.monotonic()
        while True:
            waited = self._clock.monotonic() - began
            match next_of(items, self._clock.now(), self._sessions.waits, waited, self.typed):
                case Take(batch):
                    return batch
                case Wait(batch, seconds):
                    self._taking = batch
                    await self._listen(seconds)
            items = await self._claim.pending()

    async def _listen(self, seconds: float) -> None:
        self._arrived.clear()
        try:
            async with self._clock.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            pass

    # -- turns -----------------------------------------------------------------------------------------------

    async def _carry_out(self, items: tuple[Item, ...]) -> None:
        self._taking = items
        try:
            match items[0].event:
                case Reset():
                    await self._reset(items[0])
                case Unfinished() as left:
                    await self._take_up(left)
                case _:
                    past = await self._sessions.recall(self._claim.chat)
                    run, respond = await self._agent.open(self._claim, items, past.turns)
                    self._taking = ()
                    await self._go_on(run, respond)
        except LedgerFault:
            await self._sessions.output.say(items[0].event.source, words.unwritable())
            raise
        finally:
            self._taking = ()

    async def _reset(self, item: Item) -> None:
        await self._claim.commit(ConversationReset(self._claim.chat, item.key, self._clock.now()))
        self._sessions.keep(self._claim.chat, Past())
        await self._sessions.output.say(item.event.source, words.RESET)

    async def _take_up(self, left: Unfinished) -> None:
        """A turn that an earlier process left open goes on; one that is too old, or too deadly, is ended."""
        await self._sessions.recall(self._claim.chat)
        stale = self._clock.now() - left.turn.opened > STALE
        if stale or left.resumed >= MOST_RESUMED:
            reason = "the bot was away too long" if stale else f"the bot went down in it {left.resumed} times"
            run = self._agent.abandon(self._claim, left, reason)
            self._sessions.ended(run)
            await self._sessions.output.say(left.source, words.interrupted(left.turn.id))
            await self._agent.after(run)
            return
        run = self._current = self._agent.take_up(self._claim, left)
        respond = await self._agent.recover(run)
        await self._go_on(run, respond)

    async def _go_on(self, run: Run, respond: Respond | None = None) -> None:
        """Run the turn to its one ending, or until something more urgent interrupts it."""
        self._current = run
        past = await self._sessions.recall(self._claim.chat)
        try:
            paused = not await self._agent.run(run, past.turns, respond)
        except (ClaimLost, asyncio.CancelledError):
            raise
        except Exception:  # a bug of ours: this chat must live on
            log.exception("turn %s failed", run.turn.id)
            await self._failed(run)
            paused = False
        self._current = None
        if paused:
            self._paused.append(run)
            return
        self._sessions.ended(run)
        await self._agent.after(run)

    async def _resume(self, run: Run) -> None:
        """Go on with a turn that was interrupted; the next time it takes more to do so."""
        run.interruptions += 1
        await self._go_on(run)

    async def _failed(self, run: Run) -> None:
        if run.turn.ending is None:
            self._agent.close(run, Ending.FAILED, "a bug in the kernel; see the log")
            await self._sessions.output.say(run.turn.source, words.bug(run.turn.id))

    async def _stopped(self) -> None:
        """Called off by somebody: what is in progress ends here. At shutdown it stays open for the next process."""
        reason = self._claim.cancelled
        leaving = reason == "shutdown"
        taking = self._taking or (() if self.runs else (await self._claim.pending())[:1])
        waiting = [item for item in taking if isinstance(item.event, Inbound)]
        if waiting and not leaving:
            self._sessions.ended(self._agent.stillborn(self._claim, waiting, Ending.STOPPED, reason))
        for run in self.runs:
            if run.turn.ending is not None or (leaving and run.turn.reply is None):
                continue
            self._agent.close(run, Ending.INTERRUPTED if leaving else Ending.STOPPED, reason)
            self._sessions.ended(run)
            await self._agent.after(run)
