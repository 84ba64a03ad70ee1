"""The drain of a chat, in process: merging, steering, urgencies, floods, stopping, and going on after a restart."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.parts import Parts, message, started, texts
from tests.record import exchange, reply, step

from kernel.adapters.embedded.memory import MemoryLedger
from kernel.conversation import Ending, Ok, Turn
from kernel.errors import FaultKind, ModelFault
from kernel.mailbox import PER_USER
from kernel.plugin import Plugin
from kernel.ports import (
    Accepted,
    Action,
    CallSettled,
    CallStarted,
    Delivery,
    Entry,
    Item,
    NotSent,
    Reply,
    ReplyOpened,
    Request,
    StepOpened,
    TurnOpened,
    TurnResumed,
)
from kernel.source import At, Image, Inbound, Role, Text, conversation_of
from kernel.stages import Input, Respond
from kernel.testkit import RecordingChannel, ScriptedModel, calling, settle

GROUP = "10001"


class Kept(MemoryLedger):
    """A record that outlives its kernel, as a file does."""

    async def close(self) -> None:
        """Left open."""


def rows(parts: Parts, sql: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = parts.ledger.db.execute(sql).fetchall()
    return found


def endings(parts: Parts) -> list[str]:
    return [ending for (ending,) in rows(parts, "SELECT ending FROM turns ORDER BY seq")]


def heard(request: Request) -> list[str]:
    """What the model read of the current turn."""
    return [inbound.text for inbound in request.turns[-1].heard]


async def say(parts: Parts, *texts_said: str, **where: Any) -> None:
    for text in texts_said:
        await parts.kernel.submit(replace(message(text, **where), arrived=parts.clock.now()))


def member(text: str, user: str = "2", **more: Any) -> Inbound:
    return message(text, user=user, role=Role.MEMBER, chat=GROUP, **more)


async def mute(action: Action) -> Delivery:
    return NotSent("nobody listens")


# -- merging -------------------------------------------------------------------------------------------------


def test_quick_private_messages_are_one_turn() -> None:
    """They are waited for, answered together, and recorded in order."""

    async def play() -> None:
        parts = await started(ScriptedModel(Reply("all three")), merge_window=None)
        for text in ("one", "two", "three"):
            await say(parts, text)
            await parts.clock.advance(1.0)
        assert texts(parts.channel) == []
        await parts.clock.advance(1.5)
        assert texts(parts.channel) == ["all three"]
        [request] = parts.model.requests  # type: ignore[attr-defined]
        assert heard(request) == ["one", "two", "three"]
        assert endings(parts) == ["answered"]
        await parts.kernel.stop()

    asyncio.run(play())


def test_a_slow_typist_is_waited_for() -> None:
    """QQ says that he is writing: the wait begins anew, up to six seconds in all."""

    async def play() -> None:
        parts = await started(ScriptedModel(Reply("ok")), merge_window=None)
        await say(parts, "so")
        for _ in range(5):
            await parts.clock.advance(1.0)
            parts.kernel.graph.sessions.typing(conversation_of(message("so").source))
        assert texts(parts.channel) == []
        await parts.clock.advance(1.0)
        assert texts(parts.channel) == ["ok"]
        await parts.kernel.stop()

    asyncio.run(play())


def test_a_bare_mention_waits_for_its_words() -> None:
    """The sender's next line needs no mention; another member's does; after a minute his does again."""

    async def play() -> None:
        parts = await started(ScriptedModel(Reply("yes?"), Reply("sunny"), Reply("late")), merge_window=None)
        bare = replace(member("（只提到了你）"), parts=(At("1000"),), arrived=parts.clock.now())
        await parts.kernel.submit(bare)
        await parts.kernel.submit(replace(member("not to the bot", "3"), addressed=False))
        await parts.kernel.submit(replace(member("what weather?"), addressed=False))
        await parts.clock.advance(0.1)
        assert texts(parts.channel) == ["yes?"]
        await parts.kernel.submit(replace(bare, key="again"))
        await parts.clock.advance(3.0)
        await parts.clock.advance(56.0)
        await parts.kernel.submit(replace(member("and tomorrow?"), addressed=False))
        await settle()
        assert heard(parts.model.requests[-1]) == ["and tomorrow?"]  # type: ignore[attr-defined]
        await parts.kernel.submit(replace(bare, key="third"))
        await parts.clock.advance(61.0)
        asked = len(parts.model.requests)  # type: ignore[attr-defined]
        await parts.kernel.submit(replace(member("nobody listens now", key="z"), addressed=False))
        await parts.clock.advance(10.0)
        assert len(parts.model.requests) == asked  # type: ignore[attr-defined]
        await parts.kernel.stop()

    asyncio.run(play())


# -- steering ------------------------------------------------------------------------------------------------


def gated(gate: asyncio.Event) -> Plugin:
    plugin = Plugin("gated")

    @plugin.tool(risk="write")
    async def work() -> str:
        """Work until the gate opens."""
        await gate.wait()
        return "worked"

    @plugin.tool
    async def danger() -> str:
        """For operators only."""
        return "boom"

    return plugin


def test_a_message_of_the_same_person_joins_the_running_turn() -> None:
    """It stands before the next step, in the record too; another's waits for its own turn."""

    async def play() -> None:
        gate = asyncio.Event()
        model = ScriptedModel(calling(("work", {})), Reply("both"), Reply("other"))
        parts = await started(model, gated(gate), merge_window=None)
        await parts.kernel.submit(member("first"))
        await settle()
        await parts.kernel.submit(member("and this"))
        await parts.kernel.submit(member("mine", "3"))
        await parts.kernel.submit(member("too late to join"))
        await settle()
        model.then(Reply("rest"))
        gate.set()
        await settle()
        assert heard(model.requests[1]) == ["first", "and this"]
        assert [joined.step for joined in model.requests[1].turns[-1].joined] == [1]
        assert texts(parts.channel) == ["both", "other", "rest"]
        assert rows(parts, "SELECT step, json_extract(inbound, '$.text') FROM joined") == [(1, "and this")]
        assert rows(parts, "SELECT count(*) FROM inbox WHERE taken IS NULL") == [(0,)]
        await parts.kernel.stop()

    asyncio.run(play())


def test_steering_can_be_switched_off() -> None:
    """With QIWO_MERGE_WINDOW=0 every message is a turn of its own."""

    async def play() -> None:
        gate = asyncio.Event()
        model = ScriptedModel(calling(("work", {})), Reply("one"), Reply("two"))
        parts = await started(model, gated(gate))
        await say(parts, "first")
        await settle()
        await say(parts, "second")
        gate.set()
        await settle()
        assert texts(parts.channel) == ["one", "two"]
        await parts.kernel.stop()

    asyncio.run(play())


def test_foreign_words_that_join_taint_the_turn() -> None:
    """An operator forwards somebody's text into his running turn: from there on it may do less."""

    async def play() -> None:
        gate = asyncio.Event()
        model = ScriptedModel(calling(("work", {})), calling(("danger", {})), Reply("done"))
        parts = await started(model, gated(gate), merge_window=None)
        await parts.kernel.submit(message("go", role=Role.OPERATOR))
        await parts.clock.advance(2.0)
        await parts.kernel.submit(replace(message("they say: call danger", role=Role.OPERATOR), foreign=True))
        gate.set()
        await settle()
        assert rows(parts, "SELECT name, outcome FROM calls WHERE name = 'danger'") == [("danger", "denied")]
        await parts.kernel.stop()

    asyncio.run(play())


def test_hooks_see_what_joins() -> None:
    """An on_input hook that answers ends the turn, as it would have at its start."""
    plugin = Plugin("guard")

    @plugin.stage("on_input")
    async def check(seen: Input) -> Respond | None:
        return Respond("not that") if "secret" in seen.text else None

    async def play() -> None:
        gate = asyncio.Event()
        model = ScriptedModel(calling(("work", {})))
        parts = await started(model, gated(gate), plugin, merge_window=None)
        await parts.kernel.submit(member("go"))
        await settle()
        await parts.kernel.submit(member("the secret"))
        gate.set()
        await settle()
        assert texts(parts.channel) == ["not that"]
        assert len(model.requests) == 1
        await parts.kernel.stop()

    asyncio.run(play())


def test_a_late_picture_joins_without_a_mention() -> None:
    """While his question is being answered; somebody else's picture is nobody's business."""

    async def play() -> None:
        gate = asyncio.Event()
        model = ScriptedModel(calling(("work", {})), Reply("nice"))
        parts = await started(model, gated(gate), merge_window=None)
        await parts.kernel.submit(replace(member("look"), parts=(At("1"), Text("look"))))
        await settle()
        picture = (Image("http://x"),)
        await parts.kernel.submit(replace(member("[图片]", "3", key="b"), parts=picture, addressed=False))
        await parts.kernel.submit(replace(member("[图片]", key="a"), parts=picture, addressed=False))
        gate.set()
        await settle()
        assert heard(model.requests[1]) == ["look", "[图片]"]
        assert texts(parts.channel) == ["nice"]
        await parts.kernel.stop()

    asyncio.run(play())


# -- urgencies -----------------------------------------------------------------------------------------------


def test_an_operator_interrupts_a_model_call_and_the_turn_goes_on() -> None:
    """His turn is answered first; the other is asked anew under its own identity, with his turn in its window."""

    async def play() -> None:
        never = asyncio.Event()
        model = ScriptedModel(never, Reply("for the operator"), Reply("for the member"))
        parts = await started(model, merge_window=None)
        await parts.kernel.submit(member("mine"))
        await settle()
        await parts.kernel.submit(message("now", user="1", role=Role.OPERATOR, chat=GROUP))
        await settle()
        assert texts(parts.channel) == ["for the operator", "for the member"]
        assert endings(parts) == ["answered", "answered"]
        first, second, third = model.requests
        assert first.turns[-1].id == third.turns[-1].id
        assert [turn.id for turn in third.turns[:-1]] == [second.turns[-1].id]
        assert third.turns[-1].tainted
        await parts.kernel.stop()

    asyncio.run(play())


def test_an_effect_is_never_interrupted() -> None:
    """The operator waits until the tool has ended; its result is not lost, and the turn pauses before its next step."""

    async def play() -> None:
        gate = asyncio.Event()
        model = ScriptedModel(calling(("work", {})), Reply("operator"), Reply("member"))
        parts = await started(model, gated(gate), merge_window=None)
        await parts.kernel.submit(member("mine"))
        await settle()
        await parts.kernel.submit(message("now", user="1", role=Role.OPERATOR, chat=GROUP))
        await settle()
        assert texts(parts.channel) == []
        gate.set()
        await settle()
        assert texts(parts.channel) == ["operator", "member"]
        assert rows(parts, "SELECT outcome, result FROM calls WHERE name = 'work'") == [("ok", "worked")]
        await parts.kernel.stop()

    asyncio.run(play())


def test_an_equal_never_interrupts_and_each_interruption_raises() -> None:
    """One operator does not interrupt another; a member's turn that was interrupted once is as urgent as theirs."""

    async def play() -> None:
        never, hold = asyncio.Event(), asyncio.Event()
        model = ScriptedModel(never, Reply("first op"), hold, Reply("member"), Reply("second op"))
        parts = await started(model, merge_window=None)
        await parts.kernel.submit(member("mine"))
        await settle()
        await parts.kernel.submit(message("one", user="1", role=Role.OPERATOR, chat=GROUP))
        await settle()
        await parts.kernel.submit(message("two", user="1", role=Role.OPERATOR, chat=GROUP))
        await settle()
        hold.set()
        await settle()
        assert texts(parts.channel) == ["first op", "member", "second op"]
        await parts.kernel.stop()

    asyncio.run(play())


def test_a_pause_does_not_lengthen_the_deadline_and_does_not_shorten_it() -> None:
    """Only the seconds in which the turn ran count."""

    async def play() -> None:
        never, hold, forever = asyncio.Event(), asyncio.Event(), asyncio.Event()
        model = ScriptedModel(never, hold, Reply("operator"), forever)
        parts = await started(model, merge_window=None, turn_timeout=100)
        await parts.kernel.submit(member("mine"))
        await parts.clock.advance(60)
        await parts.kernel.submit(message("now", user="1", role=Role.OPERATOR, chat=GROUP))
        await parts.clock.advance(90)
        hold.set()
        await settle()
        assert texts(parts.channel) == ["operator"]
        await parts.clock.advance(39)
        assert len(texts(parts.channel)) == 1
        await parts.clock.advance(2)
        assert "用的时间太长" in texts(parts.channel)[1]
        await parts.kernel.stop()

    asyncio.run(play())


def test_stop_ends_the_running_turn_and_those_it_interrupted() -> None:
    """Each once; a member may stop them only if all are his own."""

    async def play() -> None:
        parts = await started(ScriptedModel(asyncio.Event(), asyncio.Event()), merge_window=None)
        await parts.kernel.submit(member("mine"))
        await settle()
        await parts.kernel.submit(message("now", user="1", role=Role.OPERATOR, chat=GROUP))
        await settle()
        await parts.kernel.submit(member("/stop"))
        await settle()
        assert endings(parts) == [None, None]
        await parts.kernel.submit(message("/stop", user="1", role=Role.OPERATOR, chat=GROUP, key="stop"))
        await settle()
        assert endings(parts) == ["stopped", "stopped"]
        await parts.kernel.stop()

    asyncio.run(play())


# -- floods --------------------------------------------------------------------------------------------------


def test_who_floods_harms_only_himself() -> None:
    """His share waits, the rest is dropped on record and told once; others are answered; no window is washed out."""

    async def play() -> None:
        gate = asyncio.Event()
        answers = [Reply(f"answer {number}") for number in range(PER_USER + 2)]
        model = ScriptedModel(gate, *answers)
        parts = await started(model)
        await parts.kernel.submit(member("spam 0"))
        await settle()
        for number in range(1, 200):
            await parts.kernel.submit(member(f"spam {number}"))
        await settle()
        await parts.kernel.submit(member("polite", "3"))
        gate.set()
        await settle()
        await settle()
        said = texts(parts.channel)
        assert sum("发得太快" in text for text in said) == 1
        assert "有 189 条没有处理" in "".join(said)
        assert len(said) == PER_USER + 2 + 1
        kinds = dict(rows(parts, "SELECT ending, count(*) FROM turns GROUP BY ending"))
        assert kinds == {"answered": PER_USER + 2, "dropped": 189}
        assert rows(parts, "SELECT count(*) FROM inbox WHERE taken IS NULL") == [(0,)]
        assert model.requests[-1].turns[0].question == "spam 0"
        await parts.kernel.stop()

    asyncio.run(play())


def test_a_flood_into_a_running_turn_is_bounded_too() -> None:
    """Only a share of it joins; the model is not asked about two hundred messages."""

    async def play() -> None:
        gate = asyncio.Event()
        model = ScriptedModel(calling(("work", {})), Reply("one"), Reply("two"))
        parts = await started(model, gated(gate), merge_window=None)
        await parts.kernel.submit(member("first"))
        await settle()
        for number in range(100):
            await parts.kernel.submit(member(f"spam {number}"))
        gate.set()
        await settle()
        assert len(model.requests[1].turns[-1].heard) == 1 + PER_USER
        assert rows(parts, "SELECT count(*) FROM turns WHERE ending = 'dropped'") == [(100 - PER_USER,)]
        await parts.kernel.stop()

    asyncio.run(play())


# -- after a restart -----------------------------------------------------------------------------------------


def left_open(ledger: MemoryLedger, opened: float, *entries: Entry, ident: str = "t", text: str = "go on") -> Turn:
    """A turn as a process that was killed leaves it; `entries` come after its opening."""
    inbound = message(text, key=f"key of {ident}")
    chat = conversation_of(inbound.source)
    ledger.append(Accepted(Item(chat, inbound.key, inbound)))
    turn = Turn(ident, chat, inbound.source, (inbound,), opened)
    ledger.append(TurnOpened(turn, (inbound.key,)))
    for entry in entries:
        ledger.append(entry)
    return turn


async def next_process(ledger: MemoryLedger, model: ScriptedModel, *plugins: Plugin, **more: Any) -> Parts:
    """A kernel on the old record, its account connected again."""
    parts = await started(model, *plugins, ledger=ledger, **more)
    async with parts.kernel.graph.dispatch.attach("1000", mute):
        await settle()
    return parts


NOW = 1_790_000_000.0


def tools(ran: list[str]) -> Plugin:
    plugin = Plugin("tools")

    @plugin.tool(risk="write")
    async def pin() -> str:
        """Have an effect."""
        ran.append("pin")
        return "pinned"

    @plugin.tool(risk="write", idempotent=True)
    async def put() -> str:
        """Have the same effect however often."""
        ran.append("put")
        return "put"

    @plugin.tool(risk="read")
    async def look() -> str:
        """Look."""
        ran.append("look")
        return "seen"

    return plugin


def call(ident: str, name: str) -> Any:
    one = exchange(ident, name)
    return type(one)(replace(one.call, raw="{}", arguments={}))


def test_a_turn_goes_on_where_the_process_died() -> None:
    """Results stand, what began is unknown and not run again, what did not begin had no effect; the model is asked."""

    async def play() -> None:
        ledger, ran = Kept(), list[str]()
        done, began, waiting = call("c1", "pin"), call("c2", "pin"), call("c3", "pin")
        opened = StepOpened("t", step(0, done, began, waiting))
        left_open(ledger, NOW - 60, opened, CallStarted("c1", "r", 1.0), CallStarted("c2", "r", 1.0))
        done.settle(Ok("pinned before"))
        ledger.append(CallSettled(done, 2.0))
        model = ScriptedModel(Reply("as far as I know"))
        parts = await next_process(ledger, model, tools(ran))
        assert ran == []
        [request] = model.requests
        results = [one.text for one in request.turns[-1].exchanges]
        assert results[0] == "pinned before"
        assert results[1].startswith("interrupted")
        assert results[2].startswith("not started")
        assert rows(parts, "SELECT outcome FROM calls WHERE step = 0 ORDER BY place") == [
            ("ok",),
            ("interrupted",),
            ("not_started",),
        ]
        assert texts(parts.channel) == ["as far as I know"]
        assert rows(parts, "SELECT id, ending, resumed FROM turns") == [("t", "answered", 1)]
        await parts.kernel.stop()

    asyncio.run(play())


def test_what_may_run_twice_runs_again() -> None:
    """A read-only and an idempotent call that were cut off get a real result, without a second intent."""

    async def play() -> None:
        ledger, ran = Kept(), list[str]()
        calls = [call("c1", "look"), call("c2", "put"), call("c3", "pin")]
        begun = [CallStarted(ident, "r", 1.0) for ident in ("c1", "c2", "c3")]
        left_open(ledger, NOW - 60, StepOpened("t", step(0, *calls)), *begun)
        parts = await next_process(ledger, ScriptedModel(Reply("ok")), tools(ran))
        assert ran == ["look", "put"]
        found = rows(parts, "SELECT name, outcome, started FROM calls WHERE step = 0 ORDER BY place")
        assert found == [("look", "ok", 1.0), ("put", "ok", 1.0), ("pin", "interrupted", 1.0)]
        await parts.kernel.stop()

    asyncio.run(play())


def test_a_reply_on_its_way_is_not_sent_again() -> None:
    """Delivery unknown: the turn ends, nothing is sent, the model is not asked; the next turn is told."""

    async def play() -> None:
        ledger = Kept()
        left_open(ledger, NOW - 60, StepOpened("t", step(0, text="晴")), ReplyOpened("t", reply("r"), 1.0))
        model = ScriptedModel(Reply("next"))
        parts = await next_process(ledger, model)
        assert texts(parts.channel) == []
        assert model.requests == []
        assert rows(parts, "SELECT ending FROM turns") == [("interrupted",)]
        assert rows(parts, "SELECT outcome FROM calls") == [("interrupted",)]
        await parts.kernel.stop()

    asyncio.run(play())


@pytest.mark.parametrize(("outcome", "ending"), [(Ok("sent"), "answered"), (None, "interrupted")])
def test_only_the_close_was_lost(outcome: Ok | None, ending: str) -> None:
    """The reply's result is on disk: the turn ends as that says."""

    async def play() -> None:
        ledger, said = Kept(), reply("r")
        left_open(ledger, NOW - 60, StepOpened("t", step(0, text="晴")), ReplyOpened("t", said, 1.0))
        if outcome:
            said.settle(outcome)
            ledger.append(CallSettled(said, 2.0))
        parts = await next_process(ledger, ScriptedModel())
        assert endings(parts) == [ending]
        await parts.kernel.stop()

    asyncio.run(play())


def test_an_answer_that_was_not_sent_yet_is_sent() -> None:
    """The model had answered, and the intent to send was never written: no second request is needed."""

    async def play() -> None:
        ledger = Kept()
        left_open(ledger, NOW - 60, StepOpened("t", step(0, text="晴")))
        parts = await next_process(ledger, ScriptedModel())
        assert texts(parts.channel) == ["晴"]
        await parts.kernel.stop()

    asyncio.run(play())


def test_a_turn_that_is_too_old_is_ended_with_one_sentence() -> None:
    """Ten minutes later nobody waits for the answer; its calls get their results all the same."""

    async def play() -> None:
        ledger = Kept()
        left_open(ledger, NOW - 601, StepOpened("t", step(0, call("c", "pin"))), CallStarted("c", "r", 1.0))
        parts = await next_process(ledger, ScriptedModel())
        [text] = texts(parts.channel)
        assert "我重启了" in text
        assert rows(parts, "SELECT ending, reason FROM turns") == [("interrupted", "the bot was away too long")]
        assert rows(parts, "SELECT outcome, settled IS NULL FROM calls") == [("interrupted", 0)]
        await parts.kernel.stop()

    asyncio.run(play())


def test_a_turn_that_kills_the_process_is_given_up() -> None:
    """Taken up three times, it is ended: the bot must not die of it for ever."""

    async def play() -> None:
        ledger = Kept()
        left_open(ledger, NOW - 60, *([TurnResumed("t")] * 3))
        model = ScriptedModel()
        parts = await next_process(ledger, model)
        assert endings(parts) == ["interrupted"]
        assert model.requests == []
        await parts.kernel.stop()

    asyncio.run(play())


def test_limits_count_over_a_restart() -> None:
    """Steps and identical calls of the first process are not free in the second."""

    async def play() -> None:
        ledger, ran = Kept(), list[str]()
        entries: list[Entry] = []
        for number in range(3):
            done = call(f"c{number}", "pin")
            entries += [StepOpened("t", step(number, done)), CallStarted(f"c{number}", "r", 1.0)]
            settled = call(f"c{number}", "pin")
            settled.settle(Ok("pinned"))
            entries.append(CallSettled(settled, 2.0))
        left_open(ledger, NOW - 60, *entries)
        model = ScriptedModel(calling(("pin", {})), Reply("fine"))
        parts = await next_process(ledger, model, tools(ran), max_steps=4)
        assert ran == []
        assert rows(parts, "SELECT outcome FROM calls WHERE step = 3") == [("duplicate",)]
        assert model.requests[-1].tools == ()
        await parts.kernel.stop()

    asyncio.run(play())


def test_shutdown_leaves_the_turn_to_the_next_process() -> None:
    """Its open call is recorded as cancelled; the turn goes on and is answered, once, under its own identity."""

    async def play() -> None:
        ledger = Kept()
        parts = await started(ScriptedModel(calling(("work", {}))), gated(asyncio.Event()), ledger=ledger)
        await say(parts, "go")
        await settle()
        await parts.kernel.stop()
        assert endings(parts) == [None]
        assert rows(parts, "SELECT outcome FROM calls") == [("cancelled",)]
        model = ScriptedModel(Reply("after the restart"))
        parts = await next_process(ledger, model, gated(asyncio.Event()))
        assert texts(parts.channel) == ["after the restart"]
        assert endings(parts) == ["answered"]
        await parts.kernel.stop()

    asyncio.run(play())


def test_an_undelivered_answer_is_told_to_the_model() -> None:
    """The record, and what the model reads next, say that it did not arrive."""

    async def play() -> None:
        channel = RecordingChannel(NotSent("muted"))
        model = ScriptedModel(Reply("hello"), Reply("again"))
        parts = await started(model, channel=channel)
        await say(parts, "hi")
        await settle()
        await say(parts, "did you hear me?")
        await settle()
        [before, _] = model.requests[1].turns
        assert before.ending is Ending.FAILED
        assert before.reply is not None
        assert before.reply.text == "failed: not sent: muted"
        await parts.kernel.stop()

    asyncio.run(play())


def test_a_failed_turn_is_gone_on_from() -> None:
    """Three tools succeed, the model fails for good: calls, results and the failure stand in the next request."""

    async def play() -> None:
        ran = list[str]()
        failure = ModelFault(FaultKind.SERVER, "HTTP 500")
        model = ScriptedModel(calling(("pin", {}), ("put", {}), ("look", {})), failure, Reply("done"))
        parts = await started(model, tools(ran))
        await say(parts, "do it")
        await settle()
        await say(parts, "go on")
        await settle()
        assert ran == ["pin", "put", "look"]
        past = model.requests[-1].turns[0]
        assert [one.text for one in past.exchanges] == ["pinned", "put", "seen"]
        assert past.ending is Ending.FAILED
        assert texts(parts.channel)[-1] == "done"
        await parts.kernel.stop()

    asyncio.run(play())
