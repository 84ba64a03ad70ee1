"""The record in memory, without a thread: the same tables and rules, for tests and for trying things out."""

import asyncio
from typing import Any

from kernel.adapters.embedded.database import Work, open_database, run_group
from kernel.adapters.embedded.ledger import TableLedger, answer


class MemoryLedger(TableLedger):
    """`kernel.ports.Ledger` that is done at once. `db` is open to tests that look for themselves."""

    def __init__(self) -> None:
        self.db = open_database(":memory:")

    async def close(self) -> None:
        self.db.close()

    def _put(self, work: Work) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        [value] = run_group(self.db, [work])
        answer(future, value)
        return future
