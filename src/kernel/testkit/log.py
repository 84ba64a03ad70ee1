"""A list that tests can wait on: what came out, in order, each entry handed over once."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Log(list[T]):
    """Only ever appended to. `take` hands each entry over once, so that a second wait sees what is new."""

    def __init__(self) -> None:
        super().__init__()
        self._fresh: dict[int, T] = {}
        self._grown = asyncio.Event()

    def append(self, entry: T) -> None:
        self._fresh[len(self)] = entry
        super().append(entry)
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()

    async def take(
        self, count: int = 1, wanted: Callable[[T], bool] = lambda _: True, timeout: float = 10.0
    ) -> list[T]:
        """The next `count` wanted entries that were not taken yet. Raises TimeoutError, after real seconds."""
        try:
            async with asyncio.timeout(timeout):
                while len(found := [at for at, entry in self._fresh.items() if wanted(entry)]) < count:
                    await self._grown.wait()
        except TimeoutError:
            raise TimeoutError(
                f"{count} new ones wanted within {timeout:g} s, {len(found)} came; all there is: {list(self)}"
            ) from None
        return [self._fresh.pop(at) for at in found[:count]]
