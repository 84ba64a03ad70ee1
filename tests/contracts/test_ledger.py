"""What every record promises, whatever it is kept in: one suite for all adapters."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.record import ALICE, CHAT, exchange, item, message, open_calls, record_turn, reply, step, told, turn

from kernel.adapters.embedded import tables
from kernel.adapters.embedded.database import run
from kernel.adapters.embedded.ledger import SqliteLedger, TableLedger
from kernel.adapters.embedded.memory import MemoryLedger
from kernel.conversation import (
    Cancelled,
    Crashed,
    Ending,
    Exchange,
    Failed,
    Interrupted,
    Joined,
    NotStarted,
    Ok,
    Outcome,
    Quarantined,
    Step,
    ToolCall,
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

OTHER = ConversationId("qq/1000/private/20002")


class Shelf:
    """Where one record stands, to be opened again as after the end of its process."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.ledger = self._open()

    def _open(self) -> TableLedger:
        return SqliteLedger(self._path) if self._path else MemoryLedger()

    async def restart(self) -> TableLedger:
        if isinstance(self.ledger, MemoryLedger):
            run(self.ledger.db, tables.complete)  # all that opening does to a record that exists
        else:
            await self.ledger.close()
            self.ledger = self._open()
        return self.ledger

    def look(self, sql: str) -> list[tuple[Any, ...]]:
        """What is durable at this moment, seen from outside where there is an outside."""
        if isinstance(self.ledger, MemoryLedger):
            return self.ledger.db.execute(sql).fetchall()
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as db:
            return db.execute(sql).fetchall()


Scene = Callable[[Shelf], Coroutine[Any, Any, None]]
Play = Callable[[Scene], None]


@pytest.fixture(params=["sqlite", "memory"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Play:
    """Play a scene with a new record on its shelf."""

    async def whole(scene: Scene) -> None:
        shelf = Shelf(tmp_path / "record.db" if request.param == "sqlite" else None)
        try:
            await scene(shelf)
        finally:
            await shelf.ledger.close()

    return lambda scene: asyncio.run(whole(scene))


async def transcript(ledger: TableLedger, chat: ConversationId = CHAT, limit: int = 100) -> list[Any]:
    return [told(one) for one in (await ledger.transcript(chat, limit)).turns]


async def keys(ledger: TableLedger) -> list[str]:
    return [one.key for one in await ledger.backlog()]


# -- batches -------------------------------------------------------------------------------------------------


def test_a_batch_is_written_whole_or_not_at_all(play: Play) -> None:
    """The last entry of a batch does not fit: nothing of the batch is there."""

    async def scene(shelf: Shelf) -> None:
        with pytest.raises(LedgerFault):
            await shelf.ledger.append(
                Accepted(item("a")), TurnOpened(turn("t", "a"), ("a",)), StepOpened("nowhere", step(0))
            )
        assert await keys(shelf.ledger) == []
        assert await shelf.ledger.seen(10) == []
        assert shelf.look("SELECT count(*) FROM turns") == [(0,)]

    play(scene)


def test_appends_stand_in_the_order_of_the_calls(play: Play) -> None:
    """Also when nobody waits for them, however many they are."""

    async def scene(shelf: Shelf) -> None:
        wanted = [f"k{number}" for number in range(300)]
        for key in wanted:
            shelf.ledger.append(Accepted(item(key)))
        assert await keys(shelf.ledger) == wanted

    play(scene)


def test_a_question_sees_all_that_was_appended_before_it(play: Play) -> None:
    """And nothing that is appended after it: questions wait in the same row as batches."""

    async def scene(shelf: Shelf) -> None:
        first = record_turn(shelf.ledger, "t1")
        asked = asyncio.ensure_future(transcript(shelf.ledger))
        await asyncio.sleep(0)  # the question stands in the row now
        second = record_turn(shelf.ledger, "t2")
        assert await asked == [told(first)]
        assert await transcript(shelf.ledger) == [told(first), told(second)]

    play(scene)


def test_an_awaited_append_is_durable(play: Play) -> None:
    """Intent before effect: what was awaited is on disk for everybody, and still there in the next process."""

    async def scene(shelf: Shelf) -> None:
        ledger = shelf.ledger
        ledger.append(TurnOpened(turn("t")))
        ledger.append(StepOpened("t", step(0, exchange("c"))))
        await ledger.append(CallStarted("c", "floor:admins", 3.5))
        assert shelf.look("SELECT started, rule, settled FROM calls") == [(3.5, "floor:admins", None)]
        await shelf.restart()
        assert shelf.look("SELECT started, rule, settled FROM calls") == [(3.5, "floor:admins", None)]

    play(scene)


def test_a_batch_that_does_not_fit_takes_no_other_with_it(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    """Batches that share a transaction fail alone; one that nobody waits for is at least logged."""

    async def scene(shelf: Shelf) -> None:
        shelf.ledger.append(Accepted(item("a")))
        shelf.ledger.append(StepOpened("nowhere", step(0)))
        shelf.ledger.append(Accepted(item("b")))
        assert await keys(shelf.ledger) == ["a", "b"]

    with caplog.at_level(logging.ERROR, "qiwo"):
        play(scene)
    assert [record.getMessage() for record in caplog.records] == ["Step does not fit the record"]


def test_nonsense_in_a_batch_does_not_end_the_record(play: Play) -> None:
    """A number that no column holds: that batch fails with a reason, and the record goes on."""

    async def scene(shelf: Shelf) -> None:
        shelf.ledger.append(TurnOpened(turn("t")))
        with pytest.raises(LedgerFault, match="too large"):
            await shelf.ledger.append(StepOpened("t", Step(0, "", (), None, Usage(2**70))))
        await shelf.ledger.append(StepOpened("t", step(0)))
        assert shelf.look("SELECT prompt FROM steps") == [(100,)]

    play(scene)


def test_who_stops_waiting_does_not_undo_the_batch(play: Play) -> None:
    """A cancelled caller learns nothing of its batch, which is written all the same."""

    async def scene(shelf: Shelf) -> None:
        async def accept() -> None:
            await shelf.ledger.append(Accepted(item("a")))

        task = asyncio.create_task(accept())
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert await keys(shelf.ledger) == ["a"]

    play(scene)


def test_a_closed_record_says_so(play: Play) -> None:
    """Whoever comes after the end gets a fault, not silence; closing twice is closing once."""

    async def scene(shelf: Shelf) -> None:
        shelf.ledger.append(Accepted(item("a")))
        await shelf.ledger.close()
        await shelf.ledger.close()
        with pytest.raises(LedgerFault, match="the bot is shutting down"):
            await shelf.ledger.append(Accepted(item("b")))
        with pytest.raises(LedgerFault, match="the bot is shutting down"):
            await shelf.ledger.backlog()

    play(scene)


def test_closing_writes_what_is_queued(play: Play) -> None:
    """Nothing that was appended before `close` is lost."""

    async def scene(shelf: Shelf) -> None:
        record_turn(shelf.ledger, "t")
        await shelf.restart()
        assert len(await transcript(shelf.ledger)) == 1

    play(scene)


# -- a lost batch --------------------------------------------------------------------------------------------

LOST: dict[str, tuple[Sequence[Entry], Entry]] = {
    "message": ([Accepted(item("x")), CallStarted("nowhere", "", 1.0)], TurnOpened(turn("t2", "x"), ("x",))),
    "turn": ([TurnOpened(turn("t1"))], StepOpened("t2", step(0, exchange("new")))),
    "step": ([StepOpened("t1", step(0, exchange("new"), exchange("old")))], CallStarted("new", "", 1.0)),
    "reply": ([ReplyOpened("t2", reply("new"), 1.0)], CallSettled(exchange("new", outcome=Ok("")), 1.0)),
    "whole turn": ([TurnOpened(turn("t1"))], TurnClosed(turn("t2").close(Ending.ANSWERED), 1.0)),
}
"""What is lost (each of these batches fails), and what builds on it."""


@pytest.mark.parametrize("lost", LOST)
def test_what_builds_on_a_lost_batch_fails_too(play: Play, lost: str) -> None:
    """Nobody waited for the batch that was lost; the one that is waited for before an effect fails in its place."""
    before, after = LOST[lost]

    async def scene(shelf: Shelf) -> None:
        await shelf.ledger.append(TurnOpened(turn("t1")), StepOpened("t1", step(7, exchange("old"))))
        shelf.ledger.append(*before)
        with pytest.raises(LedgerFault):
            await shelf.ledger.append(after)

    play(scene)


def test_a_call_id_that_comes_twice_harms_nothing(play: Play) -> None:
    """The second call is refused with its whole step; the first keeps its place and its result."""

    async def scene(shelf: Shelf) -> None:
        ledger = shelf.ledger
        first = record_turn(ledger, "t1")
        ledger.append(TurnOpened(turn("t2")))
        with pytest.raises(LedgerFault):
            await ledger.append(StepOpened("t2", step(0, exchange("fresh"), exchange("t1 call"))))
        with pytest.raises(LedgerFault):
            await ledger.append(CallStarted("t1 call", "", 9.0))
        with pytest.raises(LedgerFault):
            await ledger.append(CallSettled(exchange("t1 call", outcome=Failed("other")), 9.0))
        assert await transcript(ledger) == [told(first)]
        assert shelf.look("SELECT count(*) FROM calls WHERE id = 'fresh'") == [(0,)]

    play(scene)


# -- calls and their results ---------------------------------------------------------------------------------


def test_a_result_is_given_once(play: Play) -> None:
    """The first one stands, and a call that has its result does not start again."""

    async def scene(shelf: Shelf) -> None:
        ledger = shelf.ledger
        await ledger.append(TurnOpened(turn("t")), StepOpened("t", step(0, exchange("c"), exchange("d"))))
        await ledger.append(CallStarted("c", "", 1.0))
        for late in (CallStarted("c", "other", 2.0), CallStarted("nowhere", "", 2.0)):
            with pytest.raises(LedgerFault, match="CallStarted does not fit the record"):
                await ledger.append(late)
        await ledger.append(CallSettled(exchange("c", outcome=Ok("first")), 3.0))
        await ledger.append(CallSettled(exchange("d", outcome=Cancelled("stop")), 3.0))
        with pytest.raises(LedgerFault, match="CallSettled does not fit the record"):
            await ledger.append(CallSettled(exchange("c", outcome=Ok("second")), 4.0))
        with pytest.raises(LedgerFault, match="CallStarted does not fit the record"):
            await ledger.append(CallStarted("d", "", 4.0))
        rows = shelf.look("SELECT id, started, rule, settled, outcome, result FROM calls ORDER BY place")
        assert rows == [
            ("c", 1.0, "", 3.0, "ok", "first"),
            ("d", None, "", 3.0, "cancelled", "cancelled (stop); it had no effect"),
        ]

    play(scene)


def test_a_call_is_born_interrupted(play: Play) -> None:
    """A row that is never completed holds the very words that an exchange is born with, and reads back so."""

    async def scene(shelf: Shelf) -> None:
        ledger, called, said = shelf.ledger, exchange("c"), reply("r")
        await ledger.append(TurnOpened(turn("t")), StepOpened("t", step(0, called)), ReplyOpened("t", said, 2.0))
        born = (kind_of(Interrupted()), text_of(Interrupted()))
        assert shelf.look("SELECT outcome, result FROM calls") == [born, born]
        now = replace(turn("t"), steps=(step(0, called),), reply=said).close(Ending.STOPPED, "stop")
        await ledger.append(TurnClosed(now, 3.0))
        assert await transcript(ledger) == [told(now)]
        [back] = (await ledger.transcript(CHAT, 1)).turns
        assert back.reply is not None
        assert back.reply.settled
        assert back.reply.text == called.text

    play(scene)


def test_a_closed_turn_does_not_change_any_more(play: Play) -> None:
    """No late start, result, step, reply or second end: what other turns have read stays true."""

    async def scene(shelf: Shelf) -> None:
        ledger, called = shelf.ledger, exchange("c")
        now = replace(turn("t"), steps=(step(0, called),)).close(Ending.STOPPED, "stop")
        await ledger.append(TurnOpened(turn("t")), StepOpened("t", step(0, called)), TurnClosed(now, 3.0))
        late: list[Entry] = [
            CallStarted("c", "", 4.0),
            CallSettled(exchange("c", outcome=Ok("late")), 4.0),
            StepOpened("t", step(1)),
            ReplyOpened("t", reply("r"), 4.0),
            TurnClosed(turn("t").close(Ending.ANSWERED), 4.0),
        ]
        for entry in late:
            with pytest.raises(LedgerFault):
                await ledger.append(entry)
        assert await transcript(ledger) == [told(now)]

    play(scene)


@pytest.mark.parametrize(
    "outcome",
    [
        Ok(""),
        Ok("第一行\n\x00 nul, 表情 🐧 and \u2028"),
        Failed("no such city"),
        Quarantined("clock.time_now", 12.5, "crashed 3 times"),
        Crashed("ValueError: x", "plugins/clock.py:7"),
        Cancelled("stop", started=True),
    ],
    ids=kind_of,
)
def test_what_is_stored_is_what_the_model_saw(play: Play, outcome: Outcome) -> None:
    """The words of a result, to the letter, and its fields behind them."""

    async def scene(shelf: Shelf) -> None:
        called = exchange("c", outcome=outcome)
        shelf.ledger.append(TurnOpened(turn("t")), StepOpened("t", step(0, called)), CallSettled(called, 1.0))
        shelf.ledger.append(TurnClosed(turn("t").close(Ending.ANSWERED), 2.0))
        ledger = await shelf.restart()
        [back] = (await ledger.transcript(CHAT, 1)).turns[0].steps[0].exchanges
        assert (back.outcome, back.text) == (outcome, called.text)
        assert shelf.look("SELECT outcome, result FROM calls") == [(kind_of(outcome), called.text)]

    play(scene)


def test_half_an_emoji_is_stored_as_the_model_reads_it(play: Play) -> None:
    """Half of a surrogate pair is a question mark in the request, and in the record: no turn is lost over it."""

    async def scene(shelf: Shelf) -> None:
        cut = replace(message("k", "hi \ud83d"), source=replace(ALICE, name="小明\ud83d"))
        called = exchange("c", outcome=Ok("cut \udc27 off"))
        now = replace(turn("t"), inbounds=(cut,), source=cut.source, steps=(step(0, called, text="\ud83d"),))
        shelf.ledger.append(Accepted(Item(CHAT, "k", cut)))
        shelf.ledger.append(TurnOpened(now, ("k",)), StepOpened("t", now.steps[0]), CallSettled(called, 1.0))
        await shelf.ledger.append(TurnClosed(now.close(Ending.FAILED, "\ud83d"), 2.0))
        [back] = (await shelf.ledger.transcript(CHAT, 1)).turns
        assert (back.question, back.source.name, back.reason) == ("hi ?", "小明?", "?")
        assert (back.steps[0].text, back.steps[0].exchanges[0].text) == ("?", "cut ? off")

    play(scene)


@pytest.mark.parametrize(
    ("raw", "arguments"), [('{"a": "值"}', {"a": "值"}), ("", {}), (" \n", {}), ("null", {}), ('{"a": "', None)]
)
def test_arguments_come_back_as_the_model_meant_them(play: Play, raw: str, arguments: Any) -> None:
    """The raw text to the letter, and what it came to; what was no object stays none."""

    async def scene(shelf: Shelf) -> None:
        call = ToolCall("c", "pin", raw, arguments, "call_1")
        shelf.ledger.append(TurnOpened(turn("t")), StepOpened("t", step(0, Exchange(call))))
        shelf.ledger.append(TurnClosed(turn("t").close(Ending.ANSWERED), 2.0))
        [back] = (await shelf.ledger.transcript(CHAT, 1)).turns
        assert back.steps[0].exchanges[0].call == call

    play(scene)


# -- transcripts ---------------------------------------------------------------------------------------------


def test_a_turn_comes_back_whole(play: Play) -> None:
    """Messages, source, steps, reasoning, usage, taint, weight, reason; results in call order, however they came."""

    async def scene(shelf: Shelf) -> None:
        calls = [exchange(f"c{number}", f"tool_{number}") for number in range(4)]
        said = reply("r", '{"not": "arguments"}')
        now = turn("t", "a", "b")
        now = replace(now, steps=(step(0, *calls[:3], text="先查一下"), step(1, calls[3]), step(2)), reply=said)
        shelf.ledger.append(Accepted(item("a")), Accepted(item("b")))
        shelf.ledger.append(TurnOpened(now, ("a", "b")))
        shelf.ledger.append(StepOpened("t", now.steps[0]))
        for number in (2, 0, 1):
            calls[number].settle(Ok(f"result {number}"))
            shelf.ledger.append(CallSettled(calls[number], 1.0))
        shelf.ledger.append(StepOpened("t", now.steps[1]))
        shelf.ledger.append(StepOpened("t", now.steps[2]), ReplyOpened("t", said, 2.0))
        said.settle(Failed("not sent: muted"))
        shelf.ledger.append(CallSettled(said, 3.0))
        now = replace(now.taint().close(Ending.FAILED, "not sent"), weight=123)
        shelf.ledger.append(TurnClosed(now, 4.0))
        assert await transcript(shelf.ledger) == [told(now)]
        assert await transcript(await shelf.restart()) == [told(now)]

    play(scene)


def test_a_transcript_is_the_last_turns_of_one_chat(play: Play) -> None:
    """Oldest first, as many as asked for, nothing of another chat, nothing of a turn that still runs."""

    async def scene(shelf: Shelf) -> None:
        ledger = shelf.ledger
        turns = {f"t{n}": record_turn(ledger, f"t{n}", CHAT if n % 2 else OTHER) for n in range(9, -1, -1)}
        ledger.append(TurnOpened(turn("running")))
        assert await transcript(ledger) == [told(turns[ident]) for ident in ("t9", "t7", "t5", "t3", "t1")]
        assert await transcript(ledger, limit=2) == [told(turns["t3"]), told(turns["t1"])]
        assert await transcript(ledger, OTHER, limit=1) == [told(turns["t0"])]
        assert await transcript(ledger, ConversationId("nobody")) == []

    play(scene)


def test_a_reset_starts_an_empty_transcript_and_keeps_the_old_rows(play: Play) -> None:
    """A turn that still runs at the reset belongs to the old conversation; the other chats notice nothing."""

    async def scene(shelf: Shelf) -> None:
        ledger = shelf.ledger
        other = record_turn(ledger, "other", OTHER)
        record_turn(ledger, "old")
        ledger.append(TurnOpened(turn("running")))
        ledger.append(Accepted(Item(CHAT, "reset", Reset(ALICE, "reset", 8.0))))
        ledger.append(ConversationReset(CHAT, "reset", 9.0))
        ledger.append(TurnClosed(turn("running").close(Ending.STOPPED, "reset"), 9.5))
        assert await transcript(ledger) == []
        new = record_turn(ledger, "new")
        ledger = await shelf.restart()
        assert await transcript(ledger) == [told(new)]
        assert await transcript(ledger, OTHER) == [told(other)]
        assert shelf.look("SELECT id FROM turns ORDER BY seq") == [("other",), ("old",), ("running",), ("new",)]
        assert shelf.look("SELECT count(*) FROM calls WHERE turn = 'old'") == [(2,)]

    play(scene)


def test_a_second_reset_of_an_empty_conversation_is_no_fault(play: Play) -> None:
    """Nothing happened between the two; both requests leave the inbox."""

    async def scene(shelf: Shelf) -> None:
        record_turn(shelf.ledger, "old")
        for key in ("r1", "r2"):
            await shelf.ledger.append(Accepted(Item(CHAT, key, Reset(ALICE, key, 8.0))))
            await shelf.ledger.append(ConversationReset(CHAT, key, 9.0))
        assert await transcript(shelf.ledger) == []
        assert await keys(shelf.ledger) == []

    play(scene)


# -- the inbox -----------------------------------------------------------------------------------------------


def test_the_backlog_is_what_no_turn_has_taken(play: Play) -> None:
    """In order of arrival, word for word, also in the next process."""

    async def scene(shelf: Shelf) -> None:
        ledger = shelf.ledger
        items = [item("a"), Item(OTHER, "b", Reset(ALICE, "b", 7.0)), item("c", OTHER), item("d"), item("e")]
        for one in items:
            ledger.append(Accepted(one))
        ledger.append(TurnOpened(turn("t", "a", "d"), ("a", "d")))
        ledger.append(ConversationReset(OTHER, "b", 8.0))
        assert await ledger.backlog() == [items[2], items[4]]
        assert await (await shelf.restart()).backlog() == [items[2], items[4]]

    play(scene)


def test_a_message_is_taken_once(play: Play) -> None:
    """Neither a second turn nor a reset can take it again, and no turn takes what was never accepted."""

    async def scene(shelf: Shelf) -> None:
        ledger = shelf.ledger
        await ledger.append(Accepted(item("a")), TurnOpened(turn("t1", "a"), ("a",)))
        late: list[Entry] = [
            TurnOpened(turn("t2", "a"), ("a",)),
            ConversationReset(CHAT, "a", 1.0),
            TurnOpened(turn("t3", "b"), ("b",)),
        ]
        for entry in late:
            with pytest.raises(LedgerFault, match="is not in the inbox"):
                await ledger.append(entry)
        assert shelf.look("SELECT id FROM turns") == [("t1",)]
        assert shelf.look("SELECT count(*) FROM resets") == [(0,)]

    play(scene)


def test_seen_keys_survive(play: Play) -> None:
    """The newest, oldest first, whether taken or not: what comes twice over a restart is known."""

    async def scene(shelf: Shelf) -> None:
        for key in "abcd":
            shelf.ledger.append(Accepted(item(key)))
        shelf.ledger.append(TurnOpened(turn("t", "b"), ("b",)))
        ledger = await shelf.restart()
        assert await ledger.seen(10) == ["a", "b", "c", "d"]
        assert await ledger.seen(3) == ["b", "c", "d"]

    play(scene)


def test_a_key_that_comes_again_is_a_new_message(play: Play) -> None:
    """The dispatch forgets keys some day, and QQ repeats its ids: the record takes the new message, at the end."""

    async def scene(shelf: Shelf) -> None:
        ledger = shelf.ledger
        await ledger.append(Accepted(item("a")), TurnOpened(turn("t1", "a"), ("a",)), Accepted(item("b")))
        again = replace(item("a"), event=message("a", "another text"))
        await ledger.append(Accepted(again))
        assert await ledger.backlog() == [item("b"), again]
        assert await ledger.seen(10) == ["b", "a"]
        await ledger.append(TurnOpened(turn("t2", "a"), ("a",)))
        assert await keys(ledger) == ["b"]

    play(scene)


def test_timers_are_kept_until_they_are_dropped(play: Play) -> None:
    """Soonest first; one key has one timer, the latest; they survive."""

    async def scene(shelf: Shelf) -> None:
        ledger = shelf.ledger
        ledger.append(TimerSet(item("late"), 90.0))
        ledger.append(TimerSet(item("gone"), 10.0))
        ledger.append(TimerSet(item("moved"), 20.0))
        moved = TimerSet(item("moved", OTHER), 50.0)
        ledger.append(moved)
        ledger.append(TimerDropped("gone"))
        await ledger.append(TimerDropped("nobody knows it"))
        wanted = [moved, TimerSet(item("late"), 90.0)]
        assert await ledger.timers() == wanted
        assert await (await shelf.restart()).timers() == wanted

    play(scene)


# -- what a process leaves open ------------------------------------------------------------------------------


def test_the_next_process_finds_what_was_left_open(play: Play) -> None:
    """Results stand; calls without one are open, and it says which of them may have begun. No transcript has it."""

    async def scene(shelf: Shelf) -> None:
        record_turn(shelf.ledger, "whole")
        done, began, waiting = (exchange(ident) for ident in ("done", "began", "waiting"))
        now = replace(turn("t"), steps=(step(0, done, began, waiting),))
        shelf.ledger.append(TurnOpened(turn("t")), StepOpened("t", now.steps[0]))
        shelf.ledger.append(CallStarted("done", "", 1.0), CallStarted("began", "", 1.0))
        done.settle(Ok("42"))
        await shelf.ledger.append(CallSettled(done, 2.0))
        ledger = await shelf.restart()
        [left] = await ledger.unfinished()
        assert told(left.turn) == told(now)
        assert open_calls(left.turn) == ["began", "waiting"]
        assert (left.begun, left.resumed) == ({"done", "began"}, 0)
        assert [one.id for one in (await ledger.transcript(CHAT, 9)).turns] == ["whole"]

    play(scene)


def test_a_turn_that_goes_on_is_completed_in_its_old_rows(play: Play) -> None:
    """Its open calls get their one result, it ends once, and how often it was taken up is counted."""

    async def scene(shelf: Shelf) -> None:
        called = exchange("c")
        now = replace(turn("t"), steps=(step(0, called),))
        await shelf.ledger.append(TurnOpened(turn("t")), StepOpened("t", now.steps[0]))
        for times in (1, 2):
            ledger = await shelf.restart()
            await ledger.append(TurnResumed("t"))
            assert [one.resumed for one in await ledger.unfinished()] == [times]
        called.settle(NotStarted())
        ended = now.close(Ending.ANSWERED)
        await ledger.append(CallSettled(called, 2.0), TurnClosed(ended, 3.0))
        assert await transcript(await shelf.restart()) == [told(ended)]
        assert await shelf.ledger.unfinished() == []
        with pytest.raises(LedgerFault, match="TurnResumed does not fit"):
            await shelf.ledger.append(TurnResumed("t"))

    play(scene)


def test_turns_stand_in_the_order_in_which_they_closed(play: Play) -> None:
    """One that was interrupted by a later one stands behind it."""

    async def scene(shelf: Shelf) -> None:
        for ident in ("first", "second"):
            shelf.ledger.append(TurnOpened(turn(ident)))
        shelf.ledger.append(TurnClosed(turn("second").close(Ending.ANSWERED), 1.0))
        await shelf.ledger.append(TurnClosed(turn("first").close(Ending.ANSWERED), 2.0))
        assert [one.id for one in (await shelf.ledger.transcript(CHAT, 9)).turns] == ["second", "first"]
        assert [one.id for one in (await shelf.ledger.transcript(CHAT, 1)).turns] == ["first"]

    play(scene)


def test_messages_that_joined_come_back_before_their_steps(play: Play) -> None:
    """In order, with the number of the step that they stand before; each is taken from the inbox, once."""

    async def scene(shelf: Shelf) -> None:
        now = turn("t", "a")
        shelf.ledger.append(*(Accepted(item(key)) for key in ("a", "b", "c", "d")))
        shelf.ledger.append(TurnOpened(now, ("a",)))
        for place, key in ((0, "b"), (1, "c"), (1, "d")):
            joined = Joined(place, message(key))
            now = replace(now, joined=(*now.joined, joined))
            shelf.ledger.append(Steered("t", joined))
        with pytest.raises(LedgerFault, match="message d is not in the inbox"):
            await shelf.ledger.append(Steered("t", joined))
        assert await keys(shelf.ledger) == []
        ended = now.close(Ending.ANSWERED)
        await shelf.ledger.append(TurnClosed(ended, 3.0))
        assert await transcript(await shelf.restart()) == [told(ended)]
        with pytest.raises(LedgerFault, match="Joined does not fit"):
            await shelf.ledger.append(Steered("t", joined))

    play(scene)


def test_an_old_record_that_misses_a_result_is_completed_once(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    """A call that was left open in a turn with an end gets the result that others have read, once, and it is said."""

    async def scene(shelf: Shelf) -> None:
        whole = record_turn(shelf.ledger, "whole")
        called = exchange("c")
        odd = replace(turn("odd"), steps=(step(0, called),)).close(Ending.STOPPED, "stop")
        shelf.ledger.append(TurnOpened(turn("odd")), StepOpened("odd", odd.steps[0]), TurnClosed(odd, 3.0))
        ledger = await shelf.restart()
        called.settle(Interrupted())
        assert await transcript(ledger) == [told(whole), told(odd)]
        await shelf.restart()

    play(scene)
    said = [record.getMessage() for record in caplog.records if "had no result" in record.getMessage()]
    assert said in ([], ["1 calls of closed turns had no result: each has one now (its outcome is unknown)"])


def test_forgotten_turns_leave_with_all_that_is_theirs(play: Play) -> None:
    """Steps, calls, messages that joined, inbox rows; what is younger, open or the newest stays whole."""

    async def scene(shelf: Shelf) -> None:
        ledger = shelf.ledger
        for ident in ("old", "open", "new"):
            record_turn(ledger, ident) if ident != "open" else None
            if ident == "open":
                ledger.append(Accepted(item("open key")))
                ledger.append(TurnOpened(turn("open", "open key"), ("open key",)))
        ledger.append(Accepted(item("waits")))
        before = await transcript(ledger)
        assert await ledger.forget(7.0) == 0  # both closed at 7
        assert await transcript(ledger) == before
        assert await ledger.forget(7.5) == 1
        assert await transcript(ledger) == before[1:]
        assert [one.turn.id for one in await ledger.unfinished()] == ["open"]
        assert await keys(ledger) == ["waits"]
        assert await ledger.seen(9) == ["open key", "new key", "waits"]
        for table in ("calls", "steps", "joined"):
            assert shelf.look(f"SELECT count(*) FROM {table} WHERE turn = 'old'") == [(0,)]
        assert await ledger.forget(7.5) == 0  # the newest is what resets are counted by

    play(scene)


def test_a_message_that_joined_a_forgotten_turn_leaves_too(play: Play) -> None:
    async def scene(shelf: Shelf) -> None:
        now = turn("t", "a")
        shelf.ledger.append(Accepted(item("a")), Accepted(item("b")))
        shelf.ledger.append(TurnOpened(now, ("a",)), Steered("t", Joined(0, message("b"))))
        shelf.ledger.append(TurnClosed(now.close(Ending.SILENT), 7.0))
        record_turn(shelf.ledger, "newest")
        assert await shelf.ledger.forget(8.0) == 1
        assert await shelf.ledger.seen(9) == ["newest key"]

    play(scene)


def test_a_reset_holds_when_what_it_ended_is_forgotten(play: Play) -> None:
    """The numbers by which resets know turns are not given out a second time."""

    async def scene(shelf: Shelf) -> None:
        ledger = shelf.ledger
        record_turn(ledger, "a")
        record_turn(ledger, "b")
        ledger.append(Accepted(Item(CHAT, "r", Reset(ALICE, "r", 1.0))), ConversationReset(CHAT, "r", 8.0))
        await ledger.forget(9.0)
        assert await transcript(ledger) == []
        record_turn(ledger, "c")
        assert [one[0].id for one in await transcript(ledger)] == ["c"]
        await ledger.forget(9.0)
        record_turn(ledger, "d")
        assert [one[0].id for one in await transcript(ledger)] == ["c", "d"]

    play(scene)


def test_forgetting_goes_part_by_part(play: Play) -> None:
    """Nobody's message waits behind a year of old turns."""

    async def scene(shelf: Shelf) -> None:
        for number in range(450):
            now = turn(f"t{number}", f"k{number}")
            shelf.ledger.append(Accepted(item(f"k{number}")), TurnOpened(now, (f"k{number}",)))
            shelf.ledger.append(TurnClosed(now.close(Ending.SILENT), 7.0))
        gone = [await shelf.ledger.forget(8.0) for _ in range(4)]
        assert sum(gone) == 449
        assert gone[-1] == 0
        assert max(gone) < 449

    play(scene)


def test_taint_is_only_ever_raised(play: Play) -> None:
    """A turn that began tainted ends tainted, whatever its end says."""

    async def scene(shelf: Shelf) -> None:
        for ident, before, after in (("t1", True, False), ("t2", False, True), ("t3", False, False)):
            shelf.ledger.append(TurnOpened(replace(turn(ident), tainted=before)))
            shelf.ledger.append(TurnClosed(replace(turn(ident).close(Ending.ANSWERED), tainted=after), 1.0))
        turns = (await shelf.ledger.transcript(CHAT, 3)).turns
        assert [one.tainted for one in turns] == [True, True, False]

    play(scene)


def test_turn_ids_are_the_turns_own(play: Play) -> None:
    """A turn cannot be opened twice, nor closed under another's id."""

    async def scene(shelf: Shelf) -> None:
        await shelf.ledger.append(TurnOpened(turn("t")))
        with pytest.raises(LedgerFault):
            await shelf.ledger.append(TurnOpened(turn("t")))
        stranger: Turn = turn("x").close(Ending.ANSWERED)
        with pytest.raises(LedgerFault, match="TurnClosed does not fit the record"):
            await shelf.ledger.append(TurnClosed(stranger, 1.0))

    play(scene)
