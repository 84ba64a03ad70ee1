"""The record, through the real app: public reports against other bots of this kind, each as it should have gone.

The model is strict: it answers 400 to a call without its result, as the real ones do, and no request may be refused.
"""

import asyncio
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.stage import Stage, results_in, stage

from kernel.testkit.server import Fail, Say
from kernel.testkit.server.answers import EVENTS, error


@pytest.fixture(scope="module")
def play() -> Iterator[Stage]:
    with stage(env={"QIWO_MAX_STEPS": "32", "QIWO_CONTEXT_TOKENS": "1000"}) as one:
        yield one


async def ask(play: Stage, user: int, text: str = "go") -> str:
    """The answer to a private message."""
    await play.qq.private_says(user, text)
    [sent] = await play.qq.wait_sent(1, to=f"private:{user}")
    return sent.text


async def again(play: Stage) -> None:
    """Start the bot anew, on the same record."""
    await asyncio.to_thread(play.bot.wait)
    await asyncio.to_thread(play.bot.start)
    await play.qq.connect()


def effects(play: Stage) -> list[str]:
    path = play.bot.data / "effects"
    return path.read_text("utf-8").split("\n")[:-1] if path.exists() else []


def answers_in(request: Mapping[str, Any]) -> int:
    """How often the model has spoken since the last question."""
    messages = request["messages"]
    last = max(index for index, message in enumerate(messages) if message["role"] == "user")
    return sum(message["role"] == "assistant" for message in messages[last:])


def turns_in(request: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """The messages behind the system text, cut before each question."""
    turns: list[list[dict[str, Any]]] = []
    for message in request["messages"][1:]:
        if message["role"] == "user":
            turns.append([])
        turns[-1].append(message)  # the first one after the system text has to be a question
    return turns


def test_a_call_without_its_result_is_completed_once(tmp_path: Path) -> None:
    """A1: the chat is answered, now and after one more start; the log says once what was done."""  # AstrBot#5416
    user = 30001
    with stage(data=tmp_path) as play:
        play.model.call(("note", {"word": "a1"}))
        play.model.say("noted")
        assert play.run(ask(play, user)) == "noted"
    with closing(sqlite3.connect(tmp_path / "qiwo.db")) as db, db:
        [call] = db.execute(
            "DELETE FROM calls WHERE name = 'note' RETURNING id, turn, step, place, name, raw, valid, wire_id"
        )
        db.execute(
            "INSERT INTO calls (id, turn, step, place, name, raw, valid, wire_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", call
        )
    with stage(data=tmp_path) as play:
        play.model.say("here I am")
        assert play.run(ask(play, user, "still there?")) == "here I am"
        [told] = [message["content"] for message in play.model.requests[-1]["messages"] if message["role"] == "tool"]
        assert "do not assume" in told
        assert play.bot.log.count("had no result") == 1
        play.bot.terminate()
        play.run(again(play))
        play.model.say("once more")
        assert play.run(ask(play, user, "and now?")) == "once more"
        assert play.bot.log.count("had no result") == 1
    assert (tmp_path / "effects").read_text() == "a1\n"


def test_a_long_chat_is_cut_between_turns(play: Stage) -> None:
    """A2: whatever fits is whole, the current question is inside, and a call never stands behind the system text."""
    # AstrBot#8349, AstrBot#7225, AstrBot#1243, MaiBot#1997
    user, number, before = play.newcomer(), count(), len(play.model.requests)

    def route(request: Mapping[str, Any]) -> Say:
        done = answers_in(request)
        return Say("", (("fine", {"word": f"{next(number)} " + "x" * 60}),)) if done < 3 else Say("that was it")

    async def scene() -> None:
        play.model.on(route)
        for question in range(40):
            await play.qq.private_says(user, f"question {question}")
            await play.qq.wait_sent(1, to=f"private:{user}")

    play.run(scene())
    requests = play.model.requests[before:]
    assert len(requests) == 160
    for at, request in enumerate(requests):
        *past, current = turns_in(request)
        assert current[0]["content"].endswith(f"question {at // 4}")
        assert [len(turn) for turn in past] == [8] * len(past), "three rounds and an answer, or not at all"
    shown = {len(turns_in(request)) for request in requests[80:]}
    assert max(shown) < 10, "the window is small"
    assert min(shown) > 1, "and it is used"


def test_a_cut_request_leaves_the_record_whole(play: Stage) -> None:
    """A3: thirty rounds of one turn, more than the window holds; all on record, in the next request none."""
    # AstrBot#8972, AstrBot#9936
    user = play.newcomer()

    def route(request: Mapping[str, Any]) -> Say:
        done = answers_in(request)
        return Say("", (("fine", {"word": f"{done} " + "x" * 90}),)) if done < 30 else Say("thirty rounds")

    play.model.on(route)
    assert play.run(ask(play, user)) == "thirty rounds"
    assert len(results_in(play.model.requests[-1])) == 30, "the turn that runs is never cut"
    play.model.say("next")
    assert play.run(ask(play, user, "next question")) == "next"
    assert [message["role"] for message in play.model.requests[-1]["messages"]] == ["system", "user"]
    assert [row.outcome for row in play.calls(user)] == ["ok"] * 30


def test_a_failed_turn_keeps_what_it_did(play: Stage) -> None:
    """A4: three tools, then HTTP 500 for good: each ran once, the failure is on record, `go on` goes on from there."""
    # AstrBot#7620, LangBot#769
    user, words = play.newcomer(), ["one", "two", "three"]
    for word in words:
        play.model.call(("note", {"word": word}))
    for _ in range(3):
        play.model.fail(500)
    assert "模型服务出错了" in play.run(ask(play, user))
    assert play.run(play.ended(user, 1)) == ["failed"]
    [(reason,)] = play.query("SELECT reason FROM turns WHERE json_extract(source, '$.user') = ?", str(user))
    assert "500" in reason
    play.model.say("all three are written")
    assert play.run(ask(play, user, "go on")) == "all three are written"
    told = [message["content"] for message in play.model.requests[-1]["messages"] if message["role"] == "tool"]
    assert told == [f"wrote {word}" for word in words]
    assert [row.outcome for row in play.calls(user)] == ["ok"] * 3
    assert [word for word in effects(play) if word in words] == words


def test_a_process_that_dies_in_a_call_does_not_make_it_again(play: Stage) -> None:
    """A5: killed between the effect and its result: after the start the model is told, and the turn answered."""
    # LangBot#804
    user = play.newcomer()

    async def scene() -> str:
        play.model.say("hello")
        await ask(play, user, "hi")
        play.model.call(("note", {"word": "a5", "seconds": 30}))
        await play.qq.private_says(user, "write it down")
        async with asyncio.timeout(10):
            while "a5" not in effects(play):
                await asyncio.sleep(0.01)
        play.bot.kill()
        play.model.say("I do not know whether it is written")
        await again(play)
        [sent] = await play.qq.wait_sent(1, to=f"private:{user}")
        return sent.text

    assert play.run(scene()) == "I do not know whether it is written"
    [row] = play.calls(user)
    assert row.outcome == "interrupted"
    assert results_in(play.model.requests[-1]) == [row.result]
    assert "hello" in str(play.model.requests[-1]["messages"]), "what was said before is not forgotten"
    assert effects(play).count("a5") == 1


def test_a_tool_that_raises_has_one_result(play: Stage) -> None:
    """A6: and the second message is answered."""  # LangBot#749
    user = play.newcomer()
    play.model.call(("boom", {}))
    play.model.say("it broke")
    assert play.run(ask(play, user)) == "it broke"
    [row] = play.calls(user)
    assert row.outcome == "crashed"
    assert results_in(play.model.requests[-1]) == [row.result]
    play.model.say("gladly")
    assert play.run(ask(play, user, "something else")) == "gladly"


def test_silence_beside_a_call_is_still_a_whole_step(play: Stage) -> None:
    """A7: a tool for silence that there is not, and one that there is: both have their result, and nothing is sent."""
    user = play.newcomer()  # MaiBot#1772

    async def scene() -> list[str]:
        play.model.call(("stay_silent", {}), ("fine", {}))
        play.model.say("")
        await play.qq.private_says(user, "this is not for you")
        await play.ended(user, 1)
        play.model.say("yes?")
        await play.qq.private_says(user, "but this is")
        await play.ended(user, 2)
        return [sent.text for sent in play.qq.sent if sent.chat == f"private:{user}"]

    assert play.run(scene()) == ["yes?"]
    assert [(row.name, row.outcome) for row in play.calls(user)] == [("stay_silent", "unknown_tool"), ("fine", "ok")]
    assert play.endings(user) == ["silent", "answered"]


def reasoned(*calls: Mapping[str, Any], thought: str) -> bytes:
    """A streamed answer of calls, with the thoughts that led to them."""
    deltas: Sequence[Mapping[str, Any]] = [
        {"role": "assistant", "reasoning_content": thought},
        {"tool_calls": list(calls)},
    ]
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    lines = [json.dumps({"id": "c", "object": "chat.completion.chunk", **chunk}) for chunk in chunks]
    return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()


def demanding(request: Mapping[str, Any]) -> Say | Fail:
    """DeepSeek's rule: no call of the model without the thoughts that it came with."""
    calling = [message for message in request["messages"] if message.get("tool_calls")]
    if all(message.get("reasoning_content") for message in calling):
        return Say("I remember")
    return Fail(400, error("The reasoning_content in the thinking mode must be passed back to the API."))


def thoughts_in(request: Mapping[str, Any]) -> list[str]:
    return [message["reasoning_content"] for message in request["messages"] if "reasoning_content" in message]


def test_thoughts_are_given_back(play: Stage) -> None:
    """A8: a model that wants its reasoning back on tool turns gets it, in the turn, later, and after a start."""
    user = play.newcomer()  # LangBot#2223

    async def scene() -> list[list[str]]:
        call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "fine", "arguments": "{}"}}
        play.model.raw(reasoned(call, thought="let me look"), headers=EVENTS)
        play.model.on(demanding)
        asked = []
        for question in ("look", "sure?", "still sure?"):
            assert await ask(play, user, question) == "I remember"
            asked.append(thoughts_in(play.model.requests[-1]))
            if question == "sure?":
                play.bot.kill()
                await again(play)
        return asked

    assert play.run(scene()) == [["let me look"]] * 3


@pytest.mark.parametrize("raw", ['{"scope":"on', '{"scope":"on"', "[]", '"on"', "wipe", '{"scope":"a"}{"scope":"b"}'])
def test_broken_arguments_run_nothing(play: Stage, raw: str) -> None:
    """A9: not even with defaults; the model is told, and the next request is accepted."""
    user, wiped = play.newcomer(), effects(play)  # AstrBot#6755, AstrBot#6866
    play.model.call(("wipe", raw))
    play.model.say("I shall ask again")
    assert play.run(ask(play, user)) == "I shall ask again"
    [row] = play.calls(user)
    assert (row.outcome, row.started) == ("bad_arguments", None)
    assert "arguments" in row.result
    assert effects(play) == wiped


def test_a_doubled_name_and_id_are_one(play: Stage) -> None:
    """A10: every piece repeats name and id, and the id is endless; the call runs once, no id goes out too long."""
    user = play.newcomer()  # AstrBot#7694
    ident = "call_" + "9" * 90

    def piece(arguments: str) -> dict[str, Any]:
        return {"index": 0, "id": ident, "type": "function", "function": {"name": "note", "arguments": arguments}}

    play.model.raw(reasoned(piece('{"word":'), piece(' "a10"}'), thought="hm"), headers=EVENTS)
    play.model.say("once")
    assert play.run(ask(play, user)) == "once"
    assert [(row.name, row.outcome) for row in play.calls(user)] == [("note", "ok")]
    assert effects(play).count("a10") == 1
    [call] = play.model.requests[-1]["messages"][-2]["tool_calls"]
    assert len(call["id"]) <= 64


def test_whatever_a_tool_returns_is_one_result(play: Stage) -> None:
    """A11: a sound and not a word, what yields twice, what cannot be written: each call has one result."""
    user = play.newcomer()  # measured on AstrBot
    names = ["sing", "twice", "twice_in_time", "unspeakable"]
    play.model.call(*[(name, {}) for name in names])
    play.model.say("I have heard it")
    assert play.run(ask(play, user)) == "I have heard it"
    rows = play.calls(user)
    assert [(row.name, row.outcome) for row in rows] == list(zip(names, ["ok", *["crashed"] * 3], strict=True))
    assert len(results_in(play.model.requests[-1])) == 4
    song = json.loads(rows[0].result)
    assert song["type"] == "audio/x-wav"
    assert (play.bot.data / song["kept_in"]).read_bytes().startswith(b"RIFF")


def test_twenty_groups_at_once_lose_nothing(play: Stage) -> None:
    """A12: each has its three answers in order, each with its call; the record holds every row."""
    first, groups = play.newcomer() * 100, range(71001, 71021)  # AstrBot#6443, AstrBot#8570

    def route(request: Mapping[str, Any]) -> Say:
        word = turns_in(request)[-1][0]["content"].split()[-1]
        return Say(f"answer {word}") if answers_in(request) else Say("", (("note", {"word": word}),))

    async def scene() -> None:
        play.model.on(route)
        for number in range(3):
            for group in groups:
                await play.qq.group_says(group, first + group, f"question {group}-{number}")
        for group in groups:
            sent = await play.qq.wait_sent(3, to=f"group:{group}")
            assert [one.text for one in sent] == [f"answer {group}-{number}" for number in range(3)]
        for group in groups:
            assert await play.ended(first + group, 3) == ["answered"] * 3

    play.run(scene())
    for group in groups:
        assert [row.result for row in play.calls(first + group)] == [f"wrote {group}-{number}" for number in range(3)]
    assert len({word for word in effects(play) if word.startswith("710")}) == 60
