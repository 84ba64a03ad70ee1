"""The record against a model of it in plain Python: random entries, fitting or not, and the same answers.

The model knows dictionaries and nothing of SQL. Whatever batch comes, both must take it or both must refuse it; what
is read back, before and after a restart, must be equal.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import assert_never

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts.test_ledger import Shelf
from tests.record import ALICE, Told, exchange, item, message, open_calls, reply, step, told, turn

from kernel.adapters.embedded.ledger import TableLedger
from kernel.conversation import (
    Cancelled,
    Ending,
    Exchange,
    Failed,
    Interrupted,
    Joined,
    Ok,
    Outcome,
    Step,
    TimedOut,
    ToolCall,
    Turn,
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
    Reset,
    Steered,
    StepOpened,
    TimerDropped,
    TimerSet,
    TurnClosed,
    TurnOpened,
    TurnResumed,
)
from kernel.source import ConversationId


class Refused(Exception):
    """The model does not take this batch."""


def demand(condition: object) -> None:
    if not condition:
        raise Refused


@dataclass
class Call:
    call: ToolCall
    turn: str
    started: bool = False
    outcome: Outcome | None = None

    def done(self, is_open: bool) -> Exchange:
        one = Exchange(self.call)
        if self.outcome or not is_open:
            one.settle(self.outcome or Interrupted())
        return one


@dataclass
class Model:
    inbox: dict[str, Item] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    turns: dict[str, Turn] = field(default_factory=dict)
    steps: dict[str, dict[int, tuple[Step, list[str]]]] = field(default_factory=dict)
    replies: dict[str, str] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    resets: dict[ConversationId, int] = field(default_factory=dict)
    timers: dict[str, TimerSet] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)
    resumed: dict[str, int] = field(default_factory=dict)

    # -- writing ---------------------------------------------------------------------------------------------

    def write(self, entry: Entry) -> None:
        match entry:
            case Accepted(item):
                self.inbox.pop(item.key, None)
                self.inbox[item.key] = item
                self.taken.discard(item.key)
            case TurnOpened(turn, takes):
                demand(turn.id not in self.turns)
                self.turns[turn.id] = turn
                self.steps[turn.id] = {}
                for key in takes:
                    self.take(key)
            case TurnResumed(turn):
                demand(self.is_open(turn))
                self.resumed[turn] = self.resumed.get(turn, 0) + 1
            case Steered(turn, joined):
                demand(self.is_open(turn))
                old = self.turns[turn]
                self.turns[turn] = replace(old, joined=(*old.joined, joined))
                self.take(joined.inbound.key)
            case StepOpened(turn, step):
                demand(self.is_open(turn) and step.number not in self.steps[turn])
                self.steps[turn][step.number] = step, [done.call.id for done in step.exchanges]
                for done in step.exchanges:
                    self.open_call(turn, done.call, started=False)
            case ReplyOpened(turn, said, _):
                demand(self.is_open(turn) and turn not in self.replies)
                self.open_call(turn, said.call, started=True)
                self.replies[turn] = said.call.id
            case CallStarted(ident, _, _):
                call = self.running(ident)
                demand(not call.started)
                call.started = True
            case CallSettled(done, _):
                self.running(done.call.id).outcome = done.outcome
            case TurnClosed(turn, _):
                demand(self.is_open(turn.id))
                old = self.turns[turn.id]
                self.closed.append(turn.id)
                self.turns[turn.id] = replace(
                    old,
                    ending=turn.ending,
                    reason=turn.reason,
                    weight=turn.weight,
                    tainted=old.tainted or turn.tainted,
                )
            case ConversationReset(chat, takes, _):
                self.resets[chat] = len(self.turns)
                self.take(takes)
            case TimerSet(item):
                self.timers[item.key] = entry
            case TimerDropped(key):
                self.timers.pop(key, None)
            case _:
                assert_never(entry)

    def take(self, key: str) -> None:
        demand(key in self.inbox and key not in self.taken)
        self.taken.add(key)

    def is_open(self, turn: str) -> bool:
        return turn in self.turns and self.turns[turn].ending is None

    def open_call(self, turn: str, call: ToolCall, *, started: bool) -> None:
        demand(call.id not in self.calls)
        self.calls[call.id] = Call(call, turn, started)

    def running(self, ident: str) -> Call:
        demand(ident in self.calls)
        call = self.calls[ident]
        demand(call.outcome is None and self.is_open(call.turn))
        return call

    # -- reading ---------------------------------------------------------------------------------------------

    def transcript(self, chat: ConversationId, limit: int) -> list[Told]:
        new = list(self.turns)[self.resets.get(chat, 0) :]
        turns = [self.turns[ident] for ident in self.closed if ident in new]
        turns = [turn for turn in turns if turn.ending is not Ending.DROPPED]
        return [told(self.whole(turn)) for turn in turns if turn.conversation == chat][-limit:]

    def unfinished(self) -> list[tuple[Told, list[str], set[str], int]]:
        whole = {ident: self.whole(turn) for ident, turn in self.turns.items() if turn.ending is None}
        return [
            (told(turn), open_calls(turn), self.begun(ident), self.resumed.get(ident, 0))
            for ident, turn in whole.items()
        ]

    def begun(self, turn: str) -> set[str]:
        return {ident for ident, call in self.calls.items() if call.turn == turn and call.started}

    def whole(self, turn: Turn) -> Turn:
        steps = tuple(
            replace(step, exchanges=tuple(self.calls[ident].done(self.is_open(turn.id)) for ident in calls))
            for _, (step, calls) in sorted(self.steps[turn.id].items())
        )
        said = self.replies.get(turn.id)
        return replace(turn, steps=steps, reply=self.calls[said].done(self.is_open(turn.id)) if said else None)

    def backlog(self) -> list[Item]:
        return [item for key, item in self.inbox.items() if key not in self.taken]


# -- random entries ------------------------------------------------------------------------------------------

CHATS = st.sampled_from([ConversationId("a"), ConversationId("b")])
KEYS = st.sampled_from(["k0", "k1", "k2"])
TURNS = st.sampled_from(["t0", "t1", "t2"])
CALLS = st.sampled_from(["c0", "c1", "c2", "c3"])
OUTCOMES = st.sampled_from([Ok("一"), Failed("no"), Cancelled("stop", started=True), TimedOut(0.5)])
ITEMS = st.one_of(
    st.builds(item, KEYS, CHATS), st.builds(lambda key, chat: Item(chat, key, Reset(ALICE, key, 1.0)), KEYS, CHATS)
)


def opened(ident: str, keys: Sequence[str], chat: ConversationId, tainted: bool) -> TurnOpened:
    return TurnOpened(replace(turn(ident, *keys, chat=chat), tainted=tainted), tuple(keys))


def closed(ident: str, ending: Ending, weight: int, tainted: bool) -> TurnClosed:
    return TurnClosed(replace(turn(ident).close(ending, "why"), weight=weight, tainted=tainted), 9.0)


NUMBERS = st.integers(0, 2)
FLAGS = st.booleans()
STEPS = st.builds(lambda number, idents: step(number, *map(exchange, idents)), NUMBERS, st.lists(CALLS, max_size=2))
ENTRIES: st.SearchStrategy[Entry] = st.one_of(
    st.builds(Accepted, ITEMS),
    st.builds(opened, TURNS, st.lists(KEYS, max_size=1), CHATS, FLAGS),
    st.builds(opened, TURNS, st.just([]), CHATS, FLAGS),
    st.builds(StepOpened, TURNS, STEPS),
    st.builds(StepOpened, TURNS, STEPS),
    st.builds(TurnResumed, TURNS),
    st.builds(lambda turn, step, key: Steered(turn, Joined(step, message(key))), TURNS, NUMBERS, KEYS),
    st.builds(lambda turn, ident: ReplyOpened(turn, reply(ident), 5.0), TURNS, CALLS),
    st.builds(CallStarted, CALLS, st.just("floor"), st.just(3.0)),
    st.builds(lambda ident, outcome: CallSettled(exchange(ident, outcome=outcome), 4.0), CALLS, OUTCOMES),
    st.builds(closed, TURNS, st.sampled_from(Ending), st.integers(0, 99), FLAGS),
    st.builds(ConversationReset, CHATS, KEYS, st.just(8.0)),
    st.builds(TimerSet, ITEMS, st.sampled_from([10.0, 20.0, 30.0])),
    st.builds(TimerDropped, KEYS),
)
BATCHES = st.lists(st.lists(ENTRIES, min_size=1, max_size=3), max_size=25)


async def compare(ledger: TableLedger, model: Model) -> None:
    for chat in (ConversationId("a"), ConversationId("b")):
        for limit in (1, 10):
            read = [told(one) for one in (await ledger.transcript(chat, limit)).turns]
            assert read == model.transcript(chat, limit)
    left = await ledger.unfinished()
    assert [(told(one.turn), open_calls(one.turn), set(one.begun), one.resumed) for one in left] == model.unfinished()
    assert await ledger.backlog() == model.backlog()
    assert await ledger.seen(100) == list(model.inbox)
    due = [timer.due for timer in await ledger.timers()]
    assert due == sorted(due)
    assert {timer.item.key: timer for timer in await ledger.timers()} == model.timers


async def play(path: Path | None, lives: Sequence[Sequence[Sequence[Entry]]]) -> None:
    """Each life is one process: its batches are queued, one waits for each, and the next life takes over."""
    shelf, model = Shelf(path), Model()
    try:
        for batches in lives:
            futures = [shelf.ledger.append(*batch) for batch in batches]
            for batch, future in zip(batches, futures, strict=True):
                trial = deepcopy(model)
                try:
                    for entry in batch:
                        trial.write(entry)
                except Refused:
                    with pytest.raises(LedgerFault):
                        await future
                else:
                    await future
                    model = trial
            await compare(shelf.ledger, model)
            await shelf.restart()
            await compare(shelf.ledger, model)
    finally:
        await shelf.ledger.close()


@given(st.lists(BATCHES, min_size=1, max_size=3))
@settings(max_examples=100, deadline=None)
def test_the_record_in_memory_agrees_with_the_model(lives: list[list[list[Entry]]]) -> None:
    """Batch by batch: taken or refused alike; read back alike; alike again after each restart."""
    asyncio.run(play(None, lives))


@given(st.lists(BATCHES, min_size=1, max_size=3))
@settings(max_examples=25, deadline=None)
def test_the_record_on_disk_agrees_with_the_model(lives: list[list[list[Entry]]]) -> None:
    """The same through the thread and the file, opened anew in each life."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder) / "record.db", lives))
