"""A backup is the data folder in one archive: made while the bot runs, put back while it does not."""

import os
import secrets
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path, PurePosixPath

from kernel.adapters.embedded import lock
from kernel.adapters.embedded.database import VERSION, explain
from kernel.errors import LedgerFault

RECORD = "qiwo.db"

SECRETS = "secrets"

ASIDE = "before-restore-"
"""How the folder begins in which a restore leaves what was there."""

ROOM = "restoring-"
"""And the one in which it unpacks; a killed one leaves it."""

_NOT_OURS = (f"{RECORD}-wal", f"{RECORD}-shm", f"{RECORD}.lock", f"{RECORD}.schema-")
"""SQLite's working files, the lock, copies from before a migration."""


def back_up(data: Path, to: Path, *, with_secrets: bool = False) -> None:
    """Write the folder into a new `.tar.gz` that only its owner reads. Raises LedgerFault, and leaves no half of it."""
    if not (data / RECORD).is_file():
        raise LedgerFault(f"{data} holds no record ({RECORD}): start the bot once, or set QIWO_DATA_DIR")
    if to.exists():
        raise LedgerFault(f"{to} exists already: choose another name")
    with ExitStack() as stack:
        try:
            to.parent.mkdir(parents=True, exist_ok=True)
            handle, draft = tempfile.mkstemp(dir=to.parent)
            stack.callback(Path(draft).unlink, missing_ok=True)
            room = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=to.parent)))
            copy_record(data / RECORD, room / RECORD)
            with os.fdopen(handle, "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as archive:
                archive.add(room / RECORD, RECORD)
                for path, name in _files_of(data, with_secrets=with_secrets):
                    _add(archive, path, name)
            Path(draft).rename(to)
        except OSError as error:
            raise LedgerFault(f"the backup cannot be written to {to}: {error.strerror or error}") from error


def copy_record(path: Path, to: Path) -> None:
    """The record at one moment, whether or not a bot writes in it. Raises LedgerFault."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            os.close(lock.private(to))
            with closing(sqlite3.connect(to)) as copy:
                db.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
    except sqlite3.Error as error:
        raise explain(error, str(path)) from error


def _files_of(data: Path, *, with_secrets: bool) -> Iterator[tuple[Path, str]]:
    """All that is the operator's beside the record, and its name in the archive."""
    for folder, folders, files in os.walk(data):
        top = Path(folder) == data
        if top:
            folders[:] = [name for name in folders if not name.startswith((ASIDE, ROOM))]
            folders[:] = [name for name in folders if with_secrets or name != SECRETS]
            files = [name for name in files if name != RECORD and not name.startswith(_NOT_OURS)]
        for name in sorted(files):
            path = Path(folder, name)
            if not (top and name.endswith(".tar.gz")):  # an earlier backup
                yield path, path.relative_to(data).as_posix()


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    """What a link leads to, not the link. What is cleared away in this moment was too old to miss."""
    try:
        with path.open("rb") as content:
            archive.addfile(archive.gettarinfo(arcname=name, fileobj=content), content)
    except FileNotFoundError:
        pass


# -- putting it back -----------------------------------------------------------------------------------------


def restore(data: Path, archive: Path) -> Path | None:
    """Make the folder what it was; where what stood there is now, if anything did. Raises LedgerFault.

    Nothing is touched before the archive is read and its record found whole. Secrets stay if it holds none.
    """
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = lock.hold(data / f"{RECORD}.lock")
        try:
            with tempfile.TemporaryDirectory(dir=data, prefix=ROOM) as room:
                _unpack(archive, Path(room))
                check(Path(room, RECORD))
                return _exchange(data, Path(room))
        finally:
            os.close(handle)
    except (OSError, tarfile.TarError, EOFError) as error:
        raise LedgerFault(f"{archive} cannot be restored into {data}: {error}") from error


def _unpack(archive: Path, room: Path) -> None:
    """Plain files only, readable by their owner, and none outside of the room."""
    with tarfile.open(archive, "r:gz") as packed:
        for member in packed:
            name = PurePosixPath(member.name)
            content = packed.extractfile(member) if member.isfile() else None
            if content is None or name.is_absolute() or ".." in name.parts:
                raise LedgerFault(f"{archive} holds {member.name!r}, which no backup does: nothing was restored")
            path = room / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with content, os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                shutil.copyfileobj(content, out)
            os.utime(path, (member.mtime, member.mtime))  # retention reads a file's age there


def check(path: Path) -> None:
    """Raises LedgerFault unless it is a whole record of this version or an earlier one."""
    if not path.is_file():
        raise LedgerFault(f"the archive holds no record ({RECORD}): it is no backup of Qiwo; nothing was restored")
    try:
        with closing(sqlite3.connect(path)) as db:
            [version] = db.execute("PRAGMA user_version").fetchone()
            [verdict] = db.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.Error as error:
        verdict, version = str(error), 1
    if verdict != "ok" or version == 0:
        raise LedgerFault(
            f"the record in the archive is damaged ({verdict}): take another backup; nothing was restored"
        )
    if version > VERSION:
        raise LedgerFault(f"the backup is of a newer Qiwo (schema {version}): update Qiwo; nothing was restored")


def _exchange(data: Path, room: Path) -> Path | None:
    """Move what is there aside, the record last, and the new in; the lock stays where it is held."""
    stay = {room.name, f"{RECORD}.lock"} | ({SECRETS} if not (room / SECRETS).exists() else set())
    there = [path for path in data.iterdir() if path.name not in stay and not path.name.startswith(ASIDE)]
    aside = data / f"{ASIDE}{secrets.token_hex(4)}"
    if there:
        aside.mkdir(mode=0o700)
    for path in sorted(there, key=lambda one: one.name.startswith(RECORD)):
        path.rename(aside / path.name)
    for path in sorted(room.iterdir(), key=lambda one: one.name.startswith(RECORD)):
        path.rename(data / path.name)
    return aside if there else None
