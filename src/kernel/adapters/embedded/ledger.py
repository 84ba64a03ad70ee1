"""The record in SQLite: one thread owns the connection, writes in groups, one fsync a group."""

import asyncio
import logging
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kernel.adapters.embedded import lock, queries, retention, tables
from kernel.adapters.embedded.database import Work, open_database, run_group
from kernel.conversation import Transcript
from kernel.errors import LedgerFault
from kernel.ports import Case, Entry, Item, TimerSet, Unfinished
from kernel.source import ConversationId

LINGER = 0.01
"""Seconds that an entry may wait in memory for company when nobody awaits it."""

log = logging.getLogger("qiwo.ledger")


class TableLedger:
    """`kernel.ports.Ledger` over `tables`; where the work is done is up to `_put`."""

    def _put(self, work: Work) -> asyncio.Future[Any]:
        """Queue the work behind all earlier work."""
        raise NotImplementedError

    def append(self, *entries: Entry) -> Awaitable[None]:
        return self._put(partial(tables.write_all, entries=entries))

    async def transcript(self, chat: ConversationId, limit: int) -> Transcript:
        found: Transcript = await self._put(partial(queries.read_transcript, chat=chat, limit=limit))
        return found

    async def newest(self, chat: ConversationId, user: str = "") -> Case | None:
        found: Case | None = await self._put(partial(queries.read_newest, chat=chat, user=user))
        return found

    async def unfinished(self) -> Sequence[Unfinished]:
        found: Sequence[Unfinished] = await self._put(queries.read_unfinished)
        return found

    async def backlog(self) -> Sequence[Item]:
        found: Sequence[Item] = await self._put(queries.read_backlog)
        return found

    async def seen(self, limit: int) -> Sequence[str]:
        found: Sequence[str] = await self._put(partial(queries.read_seen, limit=limit))
        return found

    async def timers(self) -> Sequence[TimerSet]:
        found: Sequence[TimerSet] = await self._put(queries.read_timers)
        return found

    async def forget(self, before: float) -> int:
        gone: int = await self._put(partial(retention.forget, before=before))
        return gone

    async def close(self) -> None:
        raise NotImplementedError


def answer(future: asyncio.Future[Any], value: object) -> None:
    """Give the future its value or its fault. Nobody has to wait for it, so a fault is logged as well."""
    if isinstance(value, LedgerFault):
        log.error("%s", value)
    if future.done():  # whoever asked was cancelled; what was written stays written
        return
    if isinstance(value, LedgerFault):
        future.set_exception(value)
        future.exception()  # or asyncio would complain of a fault that nobody waited for
    else:
        future.set_result(value)


class _Durable(asyncio.Future[Any]):
    """Done when its work is on disk. Whoever awaits it sends the work off; nobody has to."""

    def __init__(self, send: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._send = send

    def __await__(self) -> Generator[Any, None, Any]:
        self._send()
        return super().__await__()

    __iter__ = __await__


@dataclass(frozen=True, slots=True)
class _Job:
    work: Work
    future: asyncio.Future[Any]


class SqliteLedger(TableLedger):
    """`kernel.ports.Ledger` in one file, which no second process may open. Make it inside the running loop.

    What nobody awaits lingers for a moment, so that a turn wakes the writer's thread twice and not for each entry.
    """

    def __init__(self, path: Path) -> None:
        """Raises LedgerFault, saying what to do, when the file is in use, cannot be opened or is none of ours."""
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._lingering: list[_Job] = []
        self._ended = self._loop.create_future()
        self._closed = False
        with ExitStack() as stack:
            stack.callback(os.close, lock.hold(path.with_name(f"{path.name}.lock")))
            os.close(lock.private(path))  # SQLite gives its other files the same mode
            self._db = open_database(path)
            stack.callback(self._db.close)
            self._release = stack.pop_all().close
        threading.Thread(target=self._work, name="qiwo-ledger", daemon=True).start()

    async def close(self) -> None:
        """Write what is queued, then close the file."""
        self._closed = True
        self._send()
        self._jobs.put(None)
        await asyncio.shield(self._ended)

    def _put(self, work: Work) -> asyncio.Future[Any]:
        future = _Durable(self._send, self._loop)
        if self._closed:
            answer(future, LedgerFault("the record is closed; the bot is shutting down"))
            return future
        if not self._lingering:
            self._loop.call_later(LINGER, self._send)
        self._lingering.append(_Job(work, future))
        return future

    def _send(self) -> None:
        """Hand all that lingers to the writer, in order."""
        if self._lingering:
            self._jobs.put(self._lingering)
            self._lingering = []

    # -- the writer's thread ---------------------------------------------------------------------------------

    def _work(self) -> None:
        more = True
        while more:
            waiting = [self._jobs.get(), *(self._jobs.get() for _ in range(self._jobs.qsize()))]
            more = None not in waiting  # which is put last
            group = [job for jobs in waiting if jobs for job in jobs]
            values = run_group(self._db, [job.work for job in group])
            self._tell(_deliver, group, values)
        self._release()
        self._tell(self._ended.set_result, None)

    def _tell(self, say: Callable[..., object], *values: object) -> None:
        with suppress(RuntimeError):  # the loop is gone, and with it whoever waited; the rest is still written
            self._loop.call_soon_threadsafe(say, *values)


def _deliver(group: Sequence[_Job], values: Sequence[object]) -> None:
    for job, value in zip(group, values, strict=True):
        answer(job.future, value)
