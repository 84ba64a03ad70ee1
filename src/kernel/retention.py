"""How long the record is kept, and how much room its files may take: an hourly look, nothing that anybody waits for."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from kernel.errors import LedgerFault
from kernel.ports import Blobs, Clock, Ledger

EVERY = 3600.0
"""Seconds between two looks."""

DAY = 86400.0

log = logging.getLogger("qiwo.retention")


@dataclass(frozen=True, slots=True)
class Keeping:
    """`days` that a turn is kept after it closed, None for ever; `files`: bytes that all files together may take."""

    days: float | None
    files: int


class Retention:
    """Deletes what is older than it should be; the record first, so that nothing in it names what is gone for age."""

    def __init__(
        self, keeping: Keeping, ledger: Ledger, blobs: Blobs, clock: Clock, forgotten: Callable[[], None]
    ) -> None:
        """`forgotten` is told when turns have left the record: nobody may remember them."""
        self._keeping = keeping
        self._ledger = ledger
        self._blobs = blobs
        self._clock = clock
        self._forgotten = forgotten

    async def run(self) -> None:
        while True:
            await self.sweep()
            await self._clock.sleep(EVERY)

    async def sweep(self) -> None:
        """One look."""
        days = self._keeping.days
        before = 0.0 if days is None else self._clock.now() - days * DAY
        turns = 0
        try:
            while days is not None and (gone := await self._ledger.forget(before)):
                turns += gone
            files = await self._blobs.clear(before, self._keeping.files)
        except LedgerFault as fault:
            log.error("what is too old could not be deleted: %s", fault)
            return
        if turns:
            self._forgotten()
        if turns or files:
            log.info("deleted %d turns and %d files: QIWO_KEEP_DAYS, QIWO_FILES_MB", turns, files)
