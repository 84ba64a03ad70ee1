"""The record as JSON lines, one a turn, read while the bot runs."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from kernel.adapters.embedded.database import VERSION, explain
from kernel.adapters.embedded.tables import REPLY
from kernel.errors import LedgerFault

_TURNS = "id, chat, source, inbounds, opened, closed, ending, reason, tainted, resumed"


def export(path: Path, chat: str = "") -> Iterator[str]:
    """Each turn of the chat, or of all, in the order in which they were opened. Raises LedgerFault.

    Times are in seconds since 1970; `arguments` is what the model wrote, `result` what it read.
    """
    if not path.is_file():
        raise LedgerFault(f"there is no record at {path}: start the bot once, or set QIWO_DATA_DIR")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            db.row_factory = sqlite3.Row
            db.execute("BEGIN")  # one moment of the record, however long the reading takes
            _check(db, path, chat)
            for row in db.execute(f"SELECT {_TURNS} FROM turns WHERE ? IN ('', chat) ORDER BY seq", (chat,)):
                yield json.dumps(_turn(db, row), ensure_ascii=False)
    except sqlite3.Error as error:
        raise explain(error, str(path)) from error


def _check(db: sqlite3.Connection, path: Path, chat: str) -> None:
    [version] = db.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        advice = "update Qiwo" if version > VERSION else "start the bot once, which brings it up to date"
        raise LedgerFault(f"{path} has schema {version}, this Qiwo reads {VERSION}: {advice}")
    if chat and db.execute("SELECT 1 FROM turns WHERE chat = ? LIMIT 1", (chat,)).fetchone() is None:
        known = [name for (name,) in db.execute("SELECT DISTINCT chat FROM turns ORDER BY chat LIMIT 5")]
        raise LedgerFault(f"the record holds no chat {chat!r}; such as it holds: {', '.join(known) or 'none'}")


def _turn(db: sqlite3.Connection, row: sqlite3.Row) -> Mapping[str, Any]:
    turn = {**dict(row), "source": json.loads(row["source"]), "inbounds": json.loads(row["inbounds"])}
    turn["tainted"] = bool(turn["tainted"])
    calls: dict[int, list[Any]] = {}
    for call in db.execute("SELECT * FROM calls WHERE turn = ? ORDER BY step, place", (row["id"],)):
        calls.setdefault(call["step"], []).append(_call(call))
    select = "SELECT step, inbound FROM joined WHERE turn = ? ORDER BY step, place"
    turn["joined"] = [{"step": step, **json.loads(said)} for step, said in db.execute(select, (row["id"],))]
    steps = db.execute("SELECT * FROM steps WHERE turn = ? ORDER BY number", (row["id"],))
    turn["steps"] = [_step(step, calls.get(step["number"], [])) for step in steps]
    turn["reply"] = next(iter(calls.get(REPLY, [])), None)
    return turn


def _step(step: sqlite3.Row, calls: list[Any]) -> Mapping[str, Any]:
    usage = {name: step[name] for name in ("prompt", "completion", "cached")}
    return {"text": step["text"], "reasoning": step["reasoning"], "tokens": usage, "calls": calls}


def _call(call: sqlite3.Row) -> Mapping[str, Any]:
    said = {name: call[name] for name in ("id", "name", "rule", "started", "settled", "outcome", "result")}
    return {**said, "arguments": call["raw"], "detail": json.loads(call["detail"])}
