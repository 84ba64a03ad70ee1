"""The entries of the record as SQL, and transcripts back out of it. Synchronous: it runs in the writer's thread."""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from kernel.adapters.embedded import codec
from kernel.conversation import (
    Ending,
    Exchange,
    NotStarted,
    Step,
    ToolCall,
    Transcript,
    Turn,
    Usage,
    kind_of,
    text_of,
)
from kernel.errors import LedgerFault
from kernel.ports import (
    Accepted,
    CallSettled,
    CallStarted,
    ConversationReset,
    Entry,
    Item,
    ReplyOpened,
    StepOpened,
    TimerDropped,
    TimerSet,
    TurnClosed,
    TurnOpened,
)
from kernel.source import ConversationId

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
    "UPDATE turns SET closed = ?, ending = ?, reason = ?, weight = ?, tainted = max(tainted, ?)"
    " WHERE id = ? AND ending IS NULL"
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


# -- recovery ------------------------------------------------------------------------------------------------


def recover(db: sqlite3.Connection) -> None:
    """Close the turns that an earlier process left open.

    Results stand; a call that began keeps the result it was born with; one that did not had no effect. What a tool
    had said by then may have been a stranger's words, so the turn counts as tainted.
    """
    not_started = NotStarted()
    db.execute(_NOT_STARTED, (kind_of(not_started), text_of(not_started)))
    db.execute(_INTERRUPT)


_NOT_STARTED = (
    f"UPDATE calls SET outcome = ?, result = ? WHERE started IS NULL AND settled IS NULL AND EXISTS {_IS_OPEN}"
)
_INTERRUPT = """
    UPDATE turns SET
        ending = 'interrupted',
        reason = 'the bot went down',
        tainted = max(tainted, EXISTS (
            SELECT 1 FROM calls WHERE turn = turns.id AND step >= 0 AND started IS NOT NULL
        )),
        weight = 20 + (
            length(CAST(inbounds AS BLOB))
            + coalesce((SELECT sum(length(CAST(text AS BLOB))) FROM steps WHERE turn = turns.id), 0)
            + coalesce((
                SELECT sum(length(CAST(raw AS BLOB)) + length(CAST(result AS BLOB)) + 100)
                FROM calls WHERE turn = turns.id
            ), 0)
        ) / 3
    WHERE ending IS NULL
"""


# -- reading -------------------------------------------------------------------------------------------------


def read_transcript(db: sqlite3.Connection, chat: ConversationId, limit: int) -> Transcript:
    """The last closed turns since the last reset, oldest first."""
    newest = (
        "SELECT seq, id, source, inbounds, opened, tainted, ending, reason, weight FROM turns"
        " WHERE chat = ? AND ending IS NOT NULL"
        " AND seq > (SELECT coalesce(max(after), 0) FROM resets WHERE chat = ?)"
        " ORDER BY seq DESC LIMIT ?"
    )
    rows = db.execute(newest, (chat, chat, limit)).fetchall()[::-1]
    if not rows:
        return Transcript(chat)
    exchanges = _read_exchanges(db, chat, rows[0][0])
    steps = _read_steps(db, chat, rows[0][0], exchanges)
    return Transcript(chat, tuple(_turn(chat, row, steps, exchanges) for row in rows))


Exchanges = dict[tuple[str, int], list[Exchange]]
"""By turn and step."""


def _turn(chat: ConversationId, row: Sequence[Any], steps: dict[str, list[Step]], exchanges: Exchanges) -> Turn:
    _, ident, source, inbounds, opened, tainted, ending, reason, weight = row
    replies = exchanges.get((ident, REPLY))
    return Turn(
        id=ident,
        conversation=chat,
        source=codec.load_source(source),
        inbounds=codec.load_inbounds(inbounds),
        opened=opened,
        tainted=bool(tainted),
        steps=tuple(steps.get(ident, ())),
        reply=replies[0] if replies else None,
        ending=Ending(ending),
        reason=reason,
        weight=weight,
    )


def _read_steps(
    db: sqlite3.Connection, chat: ConversationId, since: int, exchanges: Exchanges
) -> dict[str, list[Step]]:
    """By turn, in order."""
    found: dict[str, list[Step]] = defaultdict(list)
    select = (
        "SELECT turn, number, text, reasoning, prompt, completion, cached FROM turns JOIN steps ON turn = id"
        " WHERE chat = ? AND seq >= ? ORDER BY seq, number"
    )
    for turn, number, text, reasoning, *usage in db.execute(select, (chat, since)):
        own = tuple(exchanges.get((turn, number), ()))
        found[turn].append(Step(number, text, own, reasoning, Usage(*usage)))
    return found


def _read_exchanges(db: sqlite3.Connection, chat: ConversationId, since: int) -> Exchanges:
    """In order; a call whose row was never completed comes back with the result it was born with."""
    found: Exchanges = defaultdict(list)
    select = (
        "SELECT turn, step, calls.id, name, raw, valid, wire_id, outcome, detail, result"
        " FROM turns JOIN calls ON turn = turns.id WHERE chat = ? AND seq >= ? ORDER BY seq, step, place"
    )
    for turn, step, ident, name, raw, valid, wire_id, outcome, detail, result in db.execute(select, (chat, since)):
        arguments = None
        if valid:
            arguments = {"text": raw} if step == REPLY else codec.load_arguments(raw)
        exchange = Exchange(ToolCall(ident, name, raw, arguments, wire_id))
        exchange.settle(codec.load_outcome(outcome, detail), result)
        found[turn, step].append(exchange)
    return found


def read_backlog(db: sqlite3.Connection) -> list[Item]:
    """Oldest first."""
    rows = db.execute("SELECT chat, key, kind, event FROM inbox WHERE taken IS NULL ORDER BY seq")
    return [Item(ConversationId(chat), key, codec.load_event(kind, event)) for chat, key, kind, event in rows]


def read_seen(db: sqlite3.Connection, limit: int) -> list[str]:
    """The newest, oldest first."""
    rows = db.execute("SELECT key FROM inbox ORDER BY seq DESC LIMIT ?", (limit,)).fetchall()
    return [key for (key,) in reversed(rows)]


def read_timers(db: sqlite3.Connection) -> list[TimerSet]:
    """Soonest first."""
    rows = db.execute("SELECT key, due, chat, kind, event FROM timers ORDER BY due")
    return [
        TimerSet(Item(ConversationId(chat), key, codec.load_event(kind, event)), due)
        for key, due, chat, kind, event in rows
    ]
