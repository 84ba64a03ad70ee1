"""Questions to the record: transcripts, open turns, the inbox. Synchronous: it runs in the writer's thread."""

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kernel.adapters.embedded import codec
from kernel.adapters.embedded.tables import REPLY
from kernel.conversation import Ending, Exchange, Joined, Step, ToolCall, Transcript, Turn, Usage
from kernel.ports import Case, Item, TimerSet, Unfinished
from kernel.source import ConversationId

_TURN = "SELECT id, chat, source, inbounds, opened, tainted, ending, reason, weight, resumed FROM turns"


def read_transcript(db: sqlite3.Connection, chat: ConversationId, limit: int) -> Transcript:
    """The last closed turns since the last reset, in the order in which they closed, without the dropped ones."""
    since_reset = "seq > (SELECT coalesce(max(after), 0) FROM resets WHERE chat = ?)"
    readable = f"chat = ? AND ended IS NOT NULL AND ending != 'dropped' AND {since_reset}"
    rows = db.execute(f"{_TURN} WHERE {readable} ORDER BY ended DESC LIMIT ?", (chat, chat, limit)).fetchall()[::-1]
    if not rows:
        return Transcript(chat)
    since = "chat = ? AND ended >= (SELECT ended FROM turns WHERE id = ?)"
    content = _read(db, since, chat, rows[0][0])
    return Transcript(chat, tuple(content.turn(row) for row in rows))


def read_newest(db: sqlite3.Connection, chat: ConversationId, user: str) -> Case | None:
    """The turn that was opened last, of the user if one is given."""
    by = "AND json_extract(source, '$.user') = ?" if user else ""
    row = db.execute(
        f"{_TURN} WHERE chat = ? {by} ORDER BY seq DESC LIMIT 1", (chat, *([user] if user else []))
    ).fetchone()
    if row is None:
        return None
    [closed] = db.execute("SELECT closed FROM turns WHERE id = ?", row[:1]).fetchone()
    rules = dict(db.execute("SELECT id, rule FROM calls WHERE turn = ? AND rule != ''", row[:1]))
    return Case(_read(db, "id = ?", row[0]).turn(row), closed, rules)


def read_unfinished(db: sqlite3.Connection) -> list[Unfinished]:
    """Oldest first. Their calls come back settled only where they were."""
    where = "ending IS NULL"
    content = _read(db, where)
    rows = db.execute(f"{_TURN} WHERE {where} ORDER BY seq").fetchall()
    return [Unfinished(content.turn(row), frozenset(content.begun[row[0]]), row[-1]) for row in rows]


# -- the content of turns ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Content:
    """What some turns hold, by turn, in order."""

    joined: dict[str, list[Joined]] = field(default_factory=lambda: defaultdict(list))
    exchanges: dict[tuple[str, int], list[Exchange]] = field(default_factory=lambda: defaultdict(list))
    """By turn and step."""
    steps: dict[str, list[Step]] = field(default_factory=lambda: defaultdict(list))
    begun: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def turn(self, row: Sequence[Any]) -> Turn:
        ident, chat, source, inbounds, opened, tainted, ending, reason, weight, _ = row
        replies = self.exchanges.get((ident, REPLY))
        return Turn(
            id=ident,
            conversation=ConversationId(chat),
            source=codec.load_source(source),
            inbounds=codec.load_inbounds(inbounds),
            opened=opened,
            tainted=bool(tainted),
            joined=tuple(self.joined.get(ident, ())),
            steps=tuple(self.steps.get(ident, ())),
            reply=replies[0] if replies else None,
            ending=None if ending is None else Ending(ending),
            reason=reason,
            weight=weight,
        )


def _read(db: sqlite3.Connection, where: str, *values: object) -> _Content:
    """Of the turns that the condition chooses."""
    content = _Content()
    chosen = f"(SELECT id FROM turns WHERE {where})"
    select = f"SELECT turn, step, inbound FROM joined WHERE turn IN {chosen} ORDER BY turn, step, place"
    for turn, step, inbound in db.execute(select, values):
        content.joined[turn].append(Joined(step, codec.load_inbound(inbound)))
    select = (
        "SELECT turn, step, id, name, raw, valid, wire_id, started, settled, outcome, detail, result,"
        f" (SELECT ending FROM turns WHERE id = turn) FROM calls WHERE turn IN {chosen} ORDER BY turn, step, place"
    )
    for row in db.execute(select, values):
        _add_call(content, row)
    select = (
        "SELECT turn, number, text, reasoning, prompt, completion, cached FROM steps"
        f" WHERE turn IN {chosen} ORDER BY turn, number"
    )
    for turn, number, text, reasoning, *usage in db.execute(select, values):
        own = tuple(content.exchanges.get((turn, number), ()))
        content.steps[turn].append(Step(number, text, own, reasoning, Usage(*usage)))
    return content


def _add_call(content: _Content, row: Sequence[Any]) -> None:
    """A call whose row was never completed comes back with the result it was born with, once its turn is closed."""
    turn, step, ident, name, raw, valid, wire_id, started, settled, outcome, detail, result, ending = row
    arguments = None
    if valid:
        arguments = {"text": raw} if step == REPLY else codec.load_arguments(raw)
    exchange = Exchange(ToolCall(ident, name, raw, arguments, wire_id))
    if settled is not None or ending is not None:
        exchange.settle(codec.load_outcome(outcome, detail), result)
    content.exchanges[turn, step].append(exchange)
    if started is not None:
        content.begun[turn].add(ident)


# -- the inbox -----------------------------------------------------------------------------------------------


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
