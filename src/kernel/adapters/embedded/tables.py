"""The entries of the record as SQL. Synchronous: it runs in the writer's thread; `queries` reads them back."""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from kernel.adapters.embedded import codec
from kernel.conversation import Joined, Step, ToolCall, Turn
from kernel.errors import LedgerFault
from kernel.ports import (
    Accepted,
    CallSettled,
    CallStarted,
    ConversationReset,
    Entry,
    Item,
    ReplyOpened,
    Steered,
    StepOpened,
    TimerDropped,
    TimerSet,
    TurnClosed,
    TurnOpened,
    TurnResumed,
)

REPLY = -1
"""The step number under which a turn's final reply stands among the calls."""


def write_all(db: sqlite3.Connection, entries: Iterable[Entry]) -> None:
    """Raises LedgerFault when a row that an entry builds on is missing, or is complete already."""
    for entry in entries:
        _write(db, entry)


def _write(db: sqlite3.Connection, entry: Entry) -> None:  # noqa: C901 - one case an entry is the point
    match entry:
        case Accepted(item):
            _accept(db, item)
        case TurnOpened(turn, takes):
            _open_turn(db, turn, takes)
        case TurnResumed(turn):
            _fits(entry, _do(db, _RESUME, turn))
        case Steered(turn, joined):
            _join(db, turn, joined)
        case StepOpened(turn, step):
            _open_step(db, turn, step)
        case ReplyOpened(turn, exchange, at):
            _open_call(db, turn, REPLY, 0, exchange.call, started=at)
        case CallStarted(call, rule, at):
            _fits(entry, _do(db, _START, at, rule, call))
        case CallSettled(exchange, at):
            kind, detail = codec.dump_outcome(exchange.outcome)
            _fits(entry, _do(db, _SETTLE, at, kind, detail, exchange.text, exchange.call.id))
        case TurnClosed(turn, at):
            row = (at, turn.ending, turn.reason, turn.weight, turn.tainted, turn.id)
            _fits(entry, _do(db, _CLOSE, *row))
        case ConversationReset(chat, takes, at):
            _do(db, _RESET, chat, at, chat)
            _take(db, "reset", takes)
        case TimerSet(item, due):
            kind, event = codec.dump_event(item.event)
            _do(db, "REPLACE INTO timers VALUES (?, ?, ?, ?, ?)", item.key, due, item.chat, kind, event)
        case TimerDropped(key):
            _do(db, "DELETE FROM timers WHERE key = ?", key)
        case _:
            assert_never(entry)


_IS_OPEN = "(SELECT 1 FROM turns WHERE turns.id = calls.turn AND turns.ending IS NULL)"
_START = (
    f"UPDATE calls SET started = ?, rule = ? WHERE id = ? AND started IS NULL AND settled IS NULL AND EXISTS {_IS_OPEN}"
)
_SETTLE = (
    "UPDATE calls SET settled = ?, outcome = ?, detail = ?, result = ?"
    f" WHERE id = ? AND settled IS NULL AND EXISTS {_IS_OPEN}"
)
_CLOSE = (
    "UPDATE turns SET closed = ?, ending = ?, reason = ?, weight = ?, tainted = max(tainted, ?),"
    " ended = (SELECT coalesce(max(ended), 0) + 1 FROM turns) WHERE id = ? AND ending IS NULL"
)
_RESUME = "UPDATE turns SET resumed = resumed + 1 WHERE id = ? AND ending IS NULL"
_JOIN = (
    "INSERT INTO joined SELECT id, ?, (SELECT count(*) FROM joined WHERE turn = turns.id), ?"
    " FROM turns WHERE id = ? AND ending IS NULL"
)
_RESET = "INSERT OR IGNORE INTO resets SELECT ?, ?, coalesce(max(seq), 0) FROM turns WHERE chat = ?"
_OPEN_STEP = "INSERT INTO steps SELECT id, ?, ?, ?, ?, ?, ? FROM turns WHERE id = ? AND ending IS NULL"
_OPEN_CALL = (
    "INSERT INTO calls (turn, id, step, place, name, raw, valid, wire_id, started)"
    " SELECT id, ?, ?, ?, ?, ?, ?, ?, ? FROM turns WHERE id = ? AND ending IS NULL"
)


def _do(db: sqlite3.Connection, sql: str, *values: Any) -> sqlite3.Cursor:  # noqa: ANN401 - what SQLite takes
    try:
        return db.execute(sql, values)
    except UnicodeEncodeError:
        return db.execute(sql, [codec.mended(value) if isinstance(value, str) else value for value in values])


def _fits(entry: object, cursor: sqlite3.Cursor) -> None:
    if cursor.rowcount != 1:
        raise LedgerFault(f"{type(entry).__name__} does not fit the record")


def _accept(db: sqlite3.Connection, item: Item) -> None:
    """A key that comes again, long after the dispatch has forgotten it, is a new message."""
    row = (item.key, item.chat, *codec.dump_event(item.event))
    _do(db, "REPLACE INTO inbox (key, chat, kind, event) VALUES (?, ?, ?, ?)", *row)


def _take(db: sqlite3.Connection, taker: str, key: str) -> None:
    """An item is taken once; one that never reached the record must not have effects either."""
    if _do(db, "UPDATE inbox SET taken = ?, event = '' WHERE key = ? AND taken IS NULL", taker, key).rowcount != 1:
        raise LedgerFault(f"message {key} is not in the inbox")


def _open_turn(db: sqlite3.Connection, turn: Turn, takes: Sequence[str]) -> None:
    source, inbounds = codec.dump_source(turn.source), codec.dump_inbounds(turn.inbounds)
    insert = "INSERT INTO turns (id, chat, source, inbounds, opened, tainted) VALUES (?, ?, ?, ?, ?, ?)"
    _do(db, insert, turn.id, turn.conversation, source, inbounds, turn.opened, turn.tainted)
    for key in takes:
        _take(db, turn.id, key)


def _join(db: sqlite3.Connection, turn: str, joined: Joined) -> None:
    _fits(joined, _do(db, _JOIN, joined.step, codec.dump_inbound(joined.inbound), turn))
    _take(db, turn, joined.inbound.key)


def _open_step(db: sqlite3.Connection, turn: str, step: Step) -> None:
    usage = step.usage
    row = (step.number, step.text, step.reasoning, usage.prompt, usage.completion, usage.cached, turn)
    _fits(step, _do(db, _OPEN_STEP, *row))
    for place, exchange in enumerate(step.exchanges):
        _open_call(db, turn, step.number, place, exchange.call)


def _open_call(
    db: sqlite3.Connection, turn: str, step: int, place: int, call: ToolCall, started: float | None = None
) -> None:
    row = (call.id, step, place, call.name, call.raw, call.arguments is not None, call.wire_id, started, turn)
    _fits(call, _do(db, _OPEN_CALL, *row))


# -- old records ---------------------------------------------------------------------------------------------


def complete(db: sqlite3.Connection) -> int:
    """Give each call of a closed turn that has no result the one it was born with; how many there were.

    Only records of other hands, and of the first version after a crash, have such calls.
    """
    return db.execute(_COMPLETE).rowcount


_COMPLETE = f"""
    UPDATE calls SET settled = coalesce((SELECT closed FROM turns WHERE id = turn), started, 0)
    WHERE settled IS NULL AND NOT EXISTS {_IS_OPEN}
"""
