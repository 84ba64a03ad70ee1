"""Files by content, in the data folder."""

import asyncio
import hashlib
import os
import tempfile
from pathlib import Path

from kernel.errors import LedgerFault


class FileBlobs:
    """`kernel.ports.Blobs` under `folder`/blobs: a file's name is the hash of what is in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def keep(self, data: bytes, suffix: str) -> str:
        name = hashlib.sha256(data).hexdigest()
        place = Path("blobs", name[:2], f"{name}.{suffix}")
        try:
            await asyncio.to_thread(_write, self._folder / place, data)
        except OSError as error:
            raise LedgerFault(f"{self._folder / place} cannot be written: {error.strerror}") from error
        return place.as_posix()


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all: under another name first."""
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    Path(draft).replace(path)
