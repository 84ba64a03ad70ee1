"""The record's file: opening it, and running work in it. What SQLite says comes out as a LedgerFault."""

import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from kernel.adapters.embedded import lock, tables
from kernel.errors import LedgerFault

VERSION = 2
"""Of the schema: the number of the last file in `migrations`."""

PATIENCE = 5.0
"""Seconds to wait for another program that has locked the file, such as a database shell."""

Work = Callable[[sqlite3.Connection], Any]
"""A batch to write, or a question to ask."""

log = logging.getLogger("qiwo.ledger")

_OF_THE_DISK = {
    "full": "the disk is full: free some space",
    "I/O": "the disk refuses: check its space and its health",
    "readonly": "the data folder cannot be written: check its owner and permissions",
    "unable to open": "the file cannot be opened: check that the data folder exists and may be written",
    "malformed": "the database is damaged: keep the file, and restore the newest backup",
    "not a database": "keep the file aside, and restore the newest backup",
    "locked": "another program holds the database: close it",
    "closed": "the bot is shutting down",
}

_OF_THE_BATCH = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError, sqlite3.InterfaceError)


def open_database(path: Path | str, *, patience: float = PATIENCE) -> sqlite3.Connection:
    """Open or create, and close what an earlier process left open. Raises LedgerFault with what to do."""
    try:
        db = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False)
        try:
            _prepare(db, path)
        except BaseException:
            db.close()
            raise
    except sqlite3.Error as error:
        raise explain(error, str(path)) from error
    return db


def _prepare(db: sqlite3.Connection, path: Path | str) -> None:
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        advice = "update Qiwo, or restore a backup"
        raise LedgerFault(f"{path} was written by a newer Qiwo (schema {version}); {advice}")
    if version == 0 and db.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
        raise LedgerFault(f"{path} is a database of another program; keep it aside, and start again")
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        db.execute(f"PRAGMA {pragma}")
    if 0 < version < VERSION:
        _keep_a_copy(db, Path(path), version)
    for number in range(version + 1, VERSION + 1):
        step = files("kernel.adapters.embedded").joinpath("migrations", f"{number:03}.sql").read_text(encoding="utf-8")
        db.executescript(f"BEGIN; {step}; PRAGMA user_version = {number}; COMMIT;")
    completed = run(db, tables.complete)
    if completed:
        log.warning("%d calls of closed turns had no result: each has one now (its outcome is unknown)", completed)


def _keep_a_copy(db: sqlite3.Connection, path: Path, version: int) -> None:
    """The record as it was, beside it, before a migration touches it."""
    copy = path.with_name(f"{path.name}.schema-{version}")
    os.close(lock.private(copy))
    with closing(sqlite3.connect(copy)) as kept:
        db.backup(kept)
    log.warning("the record is brought from schema %d to %d; as it was, it is kept in %s", version, VERSION, copy)


def run(db: sqlite3.Connection, work: Work) -> Any:  # noqa: ANN401 - the work's value
    """One piece of work in a transaction of its own. Raises LedgerFault."""
    [answer] = run_group(db, [work])
    if isinstance(answer, LedgerFault):
        raise answer
    return answer


def run_group(db: sqlite3.Connection, works: Sequence[Work]) -> list[Any]:
    """Each work's value or LedgerFault, all in one transaction.

    A batch that does not fit is undone alone; a failing disk fails them all.
    """
    try:
        db.execute("BEGIN IMMEDIATE")
        answers = _run_all(db, works)
        db.execute("COMMIT")
    except sqlite3.Error as error:
        with suppress(sqlite3.Error):  # SQLite may have rolled back by itself
            db.execute("ROLLBACK")
        return [explain(error) for _ in works]
    return answers


def _run_all(db: sqlite3.Connection, works: Sequence[Work]) -> list[Any]:
    """Nearly always everything fits: only when something did not is the group done again, each work on its own."""
    try:
        return [work(db) for work in works]
    except Exception as error:
        if _of_the_disk(error):
            raise
    db.execute("ROLLBACK")
    db.execute("BEGIN IMMEDIATE")
    return [_run_one(db, work) for work in works]


def _run_one(db: sqlite3.Connection, work: Work) -> Any:  # noqa: ANN401 - the work's value
    db.execute("SAVEPOINT one")
    try:
        answer = work(db)
    except Exception as error:  # a batch of nonsense must not take the others with it, nor the thread
        if _of_the_disk(error):
            raise
        db.execute("ROLLBACK TO one")
        answer = error if isinstance(error, LedgerFault) else LedgerFault(f"it does not fit the record: {error}")
    db.execute("RELEASE one")
    return answer


def _of_the_disk(error: Exception) -> bool:
    """Whether it is SQLite's trouble with its file, and not the batch's own."""
    return isinstance(error, sqlite3.Error) and not isinstance(error, _OF_THE_BATCH)


def explain(error: sqlite3.Error, path: str = "the record") -> LedgerFault:
    """SQLite's word as a sentence that says what to do."""
    text = str(error)
    advice = next((hint for word, hint in _OF_THE_DISK.items() if word in text), "see the log")
    return LedgerFault(f"{path}: {text}; {advice}")
