"""However a call ends, it has one recorded result, the model sees that very text, and the chat goes on.

Each way to end is played alone and beside a sound call in one parallel step (D10, C5, A6, A9, A11).
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.stage import Stage, results_in, stage


@pytest.fixture(scope="module")
def play() -> Iterator[Stage]:
    with stage(env={"QIWO_TOOL_TIMEOUT": "5"}) as one:
        yield one


@dataclass(frozen=True, slots=True)
class Case:
    """A call, how it is recorded, and words that the model must read in its result."""

    name: str
    arguments: dict[str, Any] | str
    outcome: str
    says: tuple[str, ...]


CASES = (
    Case("fine", {"word": "喂"}, "ok", ("喂",)),
    Case("qq_call_state", {}, "denied", ("denied", "qq-read-rest")),
    Case("dangerous", {}, "denied", ("denied", "exec-rest")),
    Case("guarded", {"word": "no"}, "denied", ("denied", "that word is not spoken here")),
    Case("guarded", {"word": "crash"}, "denied", ("denied", "its check of this call failed")),
    Case("guarded", {"word": "new"}, "ok", ("ran with 'newer'",)),
    Case("guarded", {"word": "bad"}, "bad_arguments", ("invalid arguments", "word")),
    Case("no_such_tool", {}, "unknown_tool", ("unknown tool", "no_such_tool")),
    Case("fine", '{"word": "on', "bad_arguments", ("invalid arguments, not run",)),
    Case("fine", "[1]", "bad_arguments", ("invalid arguments, not run",)),
    Case("fine", {"wurd": "x"}, "bad_arguments", ("wurd",)),
    Case("give_up", {}, "failed", ("the well is dry",)),
    Case("boom", {}, "crashed", ("crashed", "RuntimeError: the wheel came off")),
    Case("leave", {}, "crashed", ("crashed", "SystemExit: 3")),
    Case("leave_in_thread", {}, "crashed", ("crashed", "SystemExit")),
    Case("late", {}, "timed_out", ("timed out after 0.3 s",)),
    Case("late_in_thread", {}, "timed_out", ("timed out after 0.3 s",)),
    Case("unspeakable", {}, "crashed", ("cannot be written as JSON",)),
)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.outcome}")
def test_the_stored_result_is_what_the_model_saw(play: Stage, case: Case, beside: bool) -> None:
    """One result for each call, stored text equal to the sent one, in call order; then the chat goes on."""

    async def scene(user: int) -> tuple[dict[str, Any], dict[str, Any]]:
        companions = [("fine", {"word": "beside"})] if beside else []
        play.model.call((case.name, case.arguments), *companions)
        play.model.say("done")
        await play.qq.private_says(user, "go", kind="temp", group=40001)
        await play.qq.wait_sent(1, to=f"private:{user}")
        told = play.model.requests[-1]
        play.model.say("still here")
        await play.qq.private_says(user, "again", kind="temp", group=40001)
        [sent] = await play.qq.wait_sent(1, to=f"private:{user}")
        assert sent.text == "still here"
        return told, play.model.requests[-1]

    user = play.newcomer()
    told, later = play.run(scene(user))
    rows = play.calls(user)
    assert [row.name for row in rows] == [case.name, "fine"][: 1 + beside]
    assert rows[0].outcome == case.outcome
    assert all(words in rows[0].result for words in case.says)
    assert results_in(told) == [row.result for row in rows]
    assert [m["content"] for m in later["messages"] if m["role"] == "tool"] == [row.result for row in rows]
    assert all(row.settled is not None for row in rows)
    if beside:
        assert rows[1].result == "beside"
    assert play.run(play.ended(user, 2)) == ["answered", "answered"]


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside"])
def test_stop_cancels_what_runs_and_keeps_what_is_done(play: Stage, beside: bool) -> None:
    """/stop settles the running call as cancelled, sends nothing late, and the next request is accepted."""

    async def scene(user: int) -> dict[str, Any]:
        quick = [("fine", {"word": "quick"})] if beside else []
        play.model.call(*quick, ("slow", {"seconds": 20}))
        before = len(play.model.requests)
        await play.qq.private_says(user, "take your time", kind="temp", group=40001)
        await play.model.requests.take(1)
        async with asyncio.timeout(5):
            while not [row for row in play.calls(user) if row.name == "slow" and row.started]:
                await asyncio.sleep(0.02)
        await play.qq.private_says(user, "/stop", kind="temp", group=40001)
        [sent] = await play.qq.wait_sent(1, to=f"private:{user}")
        assert sent.text == "已停下。"
        assert len(play.model.requests) == before + 1
        play.model.say("and on we go")
        await play.qq.private_says(user, "go on", kind="temp", group=40001)
        [sent] = await play.qq.wait_sent(1, to=f"private:{user}")
        assert sent.text == "and on we go"
        return play.model.requests[-1]

    user = play.newcomer()
    request = play.run(scene(user))
    rows = play.calls(user)
    assert rows[-1].outcome == "cancelled"
    assert "stop" in rows[-1].result
    assert [m["content"] for m in request["messages"] if m["role"] == "tool"] == [row.result for row in rows]
    assert play.run(play.ended(user, 2)) == ["stopped", "answered"]
    if beside:
        assert (rows[0].outcome, rows[0].result) == ("ok", "quick")
