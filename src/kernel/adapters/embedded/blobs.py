"""Files by content, in the data folder."""

import asyncio
import os
import tempfile
import threading
from pathlib import Path

from kernel.errors import LedgerFault


class FileBlobs:
    """`kernel.ports.Blobs` in `folder`. A file's time of change says when its content was last kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._one_at_a_time = threading.Lock()  # what is kept again just now must not be cleared away as old

    async def keep(self, place: str, data: bytes) -> None:
        path = self._folder / place
        try:
            await asyncio.to_thread(self._write, path, data)
        except OSError as error:
            raise LedgerFault(f"{path} cannot be written: {error.strerror}") from error

    async def clear(self, before: float, most: int) -> int:
        try:
            return await asyncio.to_thread(self._clear, before, most)
        except OSError as error:
            raise LedgerFault(f"{self._folder / 'blobs'} cannot be cleared: {error.strerror}") from error

    def _write(self, path: Path, data: bytes) -> None:
        """Whole or not at all: under another name first."""
        with self._one_at_a_time:
            if path.exists():
                os.utime(path)
                return
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, draft = tempfile.mkstemp(dir=path.parent)
            try:
                with os.fdopen(handle, "wb") as out:
                    out.write(data)
                    out.flush()
                    os.fsync(out.fileno())
                Path(draft).replace(path)
            finally:
                Path(draft).unlink(missing_ok=True)  # on a full disk the half of it would be in the way

    def _clear(self, before: float, most: int) -> int:
        with self._one_at_a_time:
            files = [path for path in (self._folder / "blobs").rglob("*") if path.is_file()]
            for draft in [path for path in files if not path.suffix]:  # a killed process left it: ours are done
                draft.unlink()
            found = [(path, path.stat()) for path in files if path.suffix]
            left = sum(stat.st_size for _, stat in found)
            gone = 0
            for path, stat in sorted(found, key=lambda one: one[1].st_mtime):
                if stat.st_mtime >= before and left <= most:
                    break
                path.unlink()
                left -= stat.st_size
                gone += 1
            return gone
