"""The embedded dispatch: one process, one task a chat while it has mail, timers on the loop."""

import asyncio
import itertools
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from kernel.errors import KernelError
from kernel.ports import (
    Accepted,
    Action,
    Claim,
    Clock,
    ConversationReset,
    Delivery,
    Entry,
    Item,
    Ledger,
    NotSent,
    Reset,
    Sender,
    Steered,
    TimerDropped,
    TimerSet,
    TurnClosed,
    TurnOpened,
    TurnResumed,
    unfinished_key,
)
from kernel.source import ConversationId, Inbound

SEEN = 20_000
"""Inbox keys remembered, so that a message which comes twice is answered once."""

GRACE = 2.0
"""Seconds that cancelled turns get at shutdown to write down how they ended."""

log = logging.getLogger("qiwo.dispatch")

Drain = Callable[[Claim], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Box:
    """The mailbox of one chat and, while it is worked, its claim. Owned by the dispatch."""

    chat: ConversationId
    epoch: str
    ledger: Ledger
    items: dict[str, Item] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    cancelled: str = ""
    heard: Callable[[Sequence[Item]], None] | None = None
    taken: int = 0
    """Items that drains have taken."""
    left: bool = False
    """An earlier process left it; nothing new has come since."""

    def check(self) -> None:
        """In one process nobody else can have the claim."""

    async def pending(self) -> Sequence[Item]:
        return tuple(self.items.values())

    def listen(self, heard: Callable[[Sequence[Item]], None]) -> None:
        self.heard = heard

    def commit(self, *entries: Entry) -> Awaitable[None]:
        """What a turn takes leaves the mailbox in the same moment as the record is told."""
        for entry in entries:
            for key in _taken_by(entry):
                self.taken += self.items.pop(key, None) is not None
        return self.ledger.append(*entries)


def _taken_by(entry: Entry) -> Sequence[str]:
    match entry:
        case TurnOpened(takes=keys):
            return keys
        case ConversationReset(takes=key):
            return (key,)
        case Steered(joined=joined):
            return (joined.inbound.key,)
        case TurnResumed(turn):
            return (unfinished_key(turn),)
        case TurnClosed(turn):
            return (unfinished_key(turn.id),)
        case _:
            return ()


class EmbeddedDispatch:
    """`kernel.ports.Dispatch` in one process. `accept` works before `serve`: what comes early waits."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._drain: Drain | None = None
        self._boxes: dict[ConversationId, Box] = {}
        self._epochs = itertools.count(1)
        self._seen: OrderedDict[str, None] | None = None
        self._recalling = asyncio.Lock()
        self._timers: dict[str, asyncio.Task[None]] = {}
        self._senders: dict[str, list[Sender]] = {}

    async def accept(self, chat: ConversationId, event: Inbound | Reset) -> bool:
        """Raises LedgerFault when the record cannot be read for what was seen before."""
        item = Item(chat, event.key, event)
        if not await self._first_time(item.key):
            return False
        self._ledger.append(Accepted(item))
        self._put(item)
        return True

    async def serve(self, drain: Drain) -> None:
        """Take up what an earlier process left, then run drains until cancelled.

        What was left waits until its account is attached again: an answer could not be sent before.
        """
        try:
            await self._take_up()
            self._drain = drain
            for box in self._boxes.values():
                if not box.left or self._speaks_for(box):
                    self._wake(box)
            await asyncio.get_running_loop().create_future()
        finally:
            await self._end()

    async def cancel(self, chat: ConversationId, reason: str) -> bool:
        box = self._boxes.get(chat)
        return box is not None and self._cancel(box, reason)

    async def _take_up(self) -> None:
        for timer in await self._ledger.timers():
            self._start_timer(timer)
        unfinished = [Item(one.turn.conversation, one.key, one) for one in await self._ledger.unfinished()]
        backlog = await self._ledger.backlog()
        early = [item for box in self._boxes.values() for item in box.items.values()]
        for box in self._boxes.values():
            box.items.clear()
        for item in (*unfinished, *backlog):
            self._put(item)
        for box in self._boxes.values():
            box.left = bool(box.items)
        for item in early:  # who waits longest stands first; most of the early ones are in the backlog, too
            self._put(item)

    async def _end(self) -> None:
        self._drain = None
        for timer in self._timers.values():
            timer.cancel()
        running = [box.task for box in self._boxes.values() if box.task is not None]
        for box in self._boxes.values():
            self._cancel(box, "shutdown")
        if not running:
            return
        try:
            async with self._clock.timeout(GRACE):
                await asyncio.wait(running)
        except TimeoutError:
            log.error("some turns did not end within %g s of being cancelled", GRACE)

    # -- timers ----------------------------------------------------------------------------------------------

    async def at(self, when: float, chat: ConversationId, event: Inbound) -> None:
        timer = TimerSet(Item(chat, event.key, event), when)
        await self._ledger.append(timer)
        self._start_timer(timer)

    async def drop(self, key: str) -> None:
        await self._ledger.append(TimerDropped(key))
        self._stop_timer(key)

    def _start_timer(self, timer: TimerSet) -> None:
        self._stop_timer(timer.item.key)
        self._timers[timer.item.key] = asyncio.create_task(self._ring(timer))

    def _stop_timer(self, key: str) -> None:
        task = self._timers.pop(key, None)
        if task is not None:
            task.cancel()

    async def _ring(self, timer: TimerSet) -> None:
        await self._clock.sleep(timer.due - self._clock.now())
        item = timer.item
        first_time = await self._first_time(item.key)
        del self._timers[item.key]  # from here on it can be neither dropped nor replaced
        entries: list[Entry] = [TimerDropped(item.key)]
        if first_time:
            entries.append(Accepted(item))
            self._put(item)
        self._ledger.append(*entries)

    # -- accounts --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def attach(self, account: str, sender: Sender) -> AsyncIterator[None]:
        senders = self._senders.setdefault(account, [])
        senders.append(sender)
        for box in self._boxes.values():
            if box.left and self._speaks_for(box):
                self._wake(box)
        try:
            yield
        finally:
            senders.remove(sender)
            if not senders:
                del self._senders[account]

    async def call(self, account: str, action: Action) -> Delivery:
        senders = self._senders.get(account)
        if not senders:
            return NotSent(f"account {account} is not connected")
        return await senders[-1](action)

    @property
    def accounts(self) -> tuple[str, ...]:
        """The accounts whose sockets this process holds."""
        return tuple(self._senders)

    # -- mailboxes -------------------------------------------------------------------------------------------

    async def _first_time(self, key: str) -> bool:
        """Whether the key is new, here and in the record. Callers come out in the order in which they came in."""
        async with self._recalling:
            if self._seen is None:
                self._seen = OrderedDict.fromkeys(await self._ledger.seen(SEEN))
            if key in self._seen:
                return False
            self._seen[key] = None
            if len(self._seen) > SEEN:
                self._seen.popitem(last=False)
            return True

    def _speaks_for(self, box: Box) -> bool:
        return next(iter(box.items.values())).event.source.account in self._senders

    def _put(self, item: Item) -> None:
        box = self._boxes.get(item.chat)
        if box is None:
            box = self._boxes[item.chat] = Box(item.chat, "", self._ledger)
        box.items[item.key] = item
        box.left = False
        if box.heard is not None:
            box.heard(tuple(box.items.values()))
        self._wake(box)

    def _wake(self, box: Box) -> None:
        if self._drain is None or box.task is not None:
            return
        box.cancelled = ""
        box.left = False
        box.epoch = str(next(self._epochs))
        box.task = asyncio.create_task(_work(self._drain, box), name=f"chat {box.chat}")
        box.task.add_done_callback(partial(self._left, box, box.taken))

    def _left(self, box: Box, taken: int, task: asyncio.Task[None]) -> None:
        """A drain ended: go on with what has come meanwhile; an idle box is forgotten.

        Where a drain took nothing, be it broken or cancelled, the first item would come up for ever: it stays in the
        record, not here.
        """
        box.task = box.heard = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("chat %s: %s", box.chat, error, exc_info=None if isinstance(error, KernelError) else error)
        if box.items and box.taken == taken:
            del box.items[next(iter(box.items))]
        if box.items:
            self._wake(box)
        else:
            del self._boxes[box.chat]

    def _cancel(self, box: Box, reason: str) -> bool:
        """Not before the drain has begun: a task that is cancelled earlier never learns of it."""
        if box.task is None or box.task.done():
            return False
        box.cancelled = reason
        asyncio.get_running_loop().call_soon(box.task.cancel)
        return True


async def _work(drain: Drain, box: Box) -> None:
    await drain(box)
