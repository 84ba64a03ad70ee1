"""What leaves the record again: turns that are older than their keeper wants. Synchronous: in the writer's thread."""

import sqlite3

PART = 200
"""Turns that go in one transaction: nobody waits long behind it."""


def forget(db: sqlite3.Connection, before: float) -> int:
    """Delete closed turns from the oldest end on; see `kernel.ports.Ledger.forget`.

    The turn that was opened last stays, however old: resets remember it by its number, which SQLite would give again.
    """
    db.execute("CREATE TEMP TABLE IF NOT EXISTS leaving (id TEXT PRIMARY KEY)")
    db.execute(_CHOOSE, (PART, before))
    gone = db.execute("SELECT count(*) FROM leaving").fetchone()[0]
    delete_leaving(db)
    return int(gone)


def delete_leaving(db: sqlite3.Connection) -> None:
    """Delete the turns whose ids stand in the table `leaving`, with all that is theirs."""
    for statement in _DELETE:
        db.execute(statement)


_CHOOSE = """
    INSERT INTO leaving SELECT id FROM
        (SELECT id, ending, coalesce(closed, opened) AS closed FROM turns
         WHERE seq < (SELECT max(seq) FROM turns) ORDER BY seq LIMIT ?)
    WHERE ending IS NOT NULL AND closed < ?
"""

_LEAVING = "IN (SELECT id FROM leaving)"

_DELETE = (
    "DELETE FROM inbox WHERE key IN"
    f" (SELECT json_extract(one.value, '$.key') FROM turns, json_each(inbounds) one WHERE turns.id {_LEAVING})",
    f"DELETE FROM inbox WHERE key IN (SELECT json_extract(inbound, '$.key') FROM joined WHERE turn {_LEAVING})",
    f"DELETE FROM joined WHERE turn {_LEAVING}",
    f"DELETE FROM calls WHERE turn {_LEAVING}",
    f"DELETE FROM steps WHERE turn {_LEAVING}",
    f"DELETE FROM turns WHERE id {_LEAVING}",
    "DELETE FROM leaving",
    # A reset says no more than that the turns before it are past.
    "DELETE FROM resets WHERE NOT EXISTS (SELECT 1 FROM turns WHERE turns.chat = resets.chat AND seq <= after)"
    " AND after < (SELECT max(seq) FROM turns)",
    "DELETE FROM inbox WHERE taken = 'reset' AND seq < (SELECT min(seq) FROM inbox WHERE taken IS NOT 'reset')",
)
