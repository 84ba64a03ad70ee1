"""One process a data folder: a lock that the system itself takes back when its holder dies."""

import os
import sys
from pathlib import Path

from kernel.errors import LedgerFault

if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def private(path: Path) -> int:
    """Open the file to read and write; if it has to be made, it is this user's alone. Raises LedgerFault."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        advice = "check that the data folder exists and may be written"
        raise LedgerFault(f"{path}: {error.strerror}; {advice}") from error


def hold(path: Path) -> int:
    """Lock the file, made if need be, until the returned handle is closed. Raises LedgerFault."""
    handle = private(path)
    try:
        _lock(handle)
    except OSError as error:
        os.close(handle)
        advice = "stop the other bot on it, or set QIWO_DATA_DIR to a folder of this bot's own"
        raise LedgerFault(f"the data folder {path.parent} is in use ({error.strerror}); {advice}") from error
    return handle
