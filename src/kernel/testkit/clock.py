"""A clock that moves when it is told to."""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from contextlib import suppress

SETTLE = 50
"""Turns of the loop that count as "everything that can run has run"."""


async def settle() -> None:
    """Let the loop run until what is ready has run. Covers tasks, not sockets and not threads."""
    for _ in range(SETTLE):
        await asyncio.sleep(0)


class FakeClock:
    """`kernel.ports.Clock` whose seconds pass only in `advance`."""

    def __init__(self, now: float = 1_790_000_000.0) -> None:
        self._monotonic = 0.0
        self._offset = now
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._offset + self._monotonic

    def monotonic(self) -> float:
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.Event()
        self._ring(seconds, woken.set)
        await woken.wait()

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        """Enter it at once, as `async with clock.timeout(5)` does."""
        if seconds is None or seconds <= 0:
            return asyncio.timeout(seconds)
        timeout = asyncio.timeout(None)
        self._ring(seconds, lambda: _expire(timeout))
        return timeout

    async def advance(self, seconds: float) -> None:
        """Let this much time pass, stopping at each due timer until what it woke has run (`settle`)."""
        if seconds < 0:
            raise ValueError("time does not run backwards; jump_wall moves the wall clock")
        await settle()
        end = self._monotonic + seconds
        while self._timers and self._timers[0][0] <= end:
            self._monotonic, _, ring = heapq.heappop(self._timers)
            ring()
            await settle()
        self._monotonic = end

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an operator or NTP does; nothing else notices."""
        self._offset += seconds

    def _ring(self, seconds: float, ring: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self._monotonic + seconds, next(self._order), ring))


def _expire(timeout: asyncio.Timeout) -> None:
    with suppress(RuntimeError):  # its block has ended: nothing is left to cut short
        timeout.reschedule(asyncio.get_running_loop().time())
