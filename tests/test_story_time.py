"""The loop and time, through the real app: public reports against other bots of this kind, each as it should have gone.

B4 and B9 stand in test_story_limits.py, with the other limits of a turn.
"""

import time
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import pytest
from tests.stage import Stage, results_in, stage

from kernel.testkit.server import Say


@pytest.fixture(scope="module")
def play() -> Iterator[Stage]:
    with stage(env={"QIWO_MAX_STEPS": "12", "QIWO_TOOL_TIMEOUT": "2", "QIWO_MODEL_TIMEOUT": "3"}) as one:
        yield one


async def ask(play: Stage, user: int, text: str = "go") -> str:
    await play.qq.private_says(user, text)
    [sent] = await play.qq.wait_sent(1, to=f"private:{user}")
    return sent.text


def test_the_same_call_in_every_step_is_blocked(play: Stage) -> None:
    """B1: thirty times the same, if it were let; each call has its result, and the person has an answer."""
    user = play.newcomer()  # AstrBot#7387

    def route(request: Mapping[str, Any]) -> Say:
        return Say("I give up", (("fine", {"word": "again"}),)) if request.get("tools") else Say("nothing came of it")

    play.model.on(route)
    assert play.run(ask(play, user)) == "nothing came of it"
    assert [row.outcome for row in play.calls(user)] == ["ok"] * 3 + ["duplicate"] * 9
    assert len(results_in(play.model.requests[-1])) == 12


def test_a_model_that_talks_by_tool_for_ever_is_ended(play: Stage) -> None:
    """B2: six messages by tool, then the steps run out: one notice, and the prompt holds nothing that nobody said."""
    user, number = play.newcomer(), count()  # HomeAgent, MaiBot#1933

    async def scene() -> list[str]:
        play.model.on(lambda _: Say("", (("output_send__qq", {"text": f"line {next(number)}"}),)))
        await play.qq.private_says(user, "go")
        await play.ended(user, 1)
        return [sent.text for sent in play.qq.sent if sent.chat == f"private:{user}"]

    *lines, notice = play.run(scene())
    assert lines == [f"line {at}" for at in range(6)]
    assert "12 步" in notice
    assert [row.outcome for row in play.calls(user)] == ["ok"] * 6 + ["rate_limited"] * 7
    roles = [message["role"] for message in play.model.requests[-1]["messages"]]
    assert roles == ["system", "user"] + ["assistant", "tool"] * 12


def test_a_model_that_hangs_is_told_in_time(play: Stage) -> None:
    """B3: it accepts the connection and never answers: a human sentence once the model's time is over."""
    user = play.newcomer()  # AstrBot#7956

    async def scene() -> tuple[str, float]:
        play.model.hang()
        begun = time.monotonic()
        said = await ask(play, user)
        return said, time.monotonic() - begun

    said, seconds = play.run(scene())
    assert "没有回答" in said
    assert 2.9 < seconds < 6


def test_a_tool_that_never_returns_keeps_nobody_else(play: Stage) -> None:
    """B5: another group is answered while it hangs; it is ended at its limit, and its own chat has its answer."""
    user, other = play.newcomer(), play.newcomer()  # LangBot#2339

    def route(request: Mapping[str, Any]) -> Say:
        return Say("it hangs") if request["messages"][-1]["role"] == "tool" else Say("here")

    async def scene() -> tuple[float, str]:
        play.model.call(("slow", {"seconds": 600}))
        play.model.on(route)
        await play.qq.group_says(72001, user, "hang")
        await play.model.wait_requests(1, timeout=5)
        begun = time.monotonic()
        await play.qq.group_says(72002, other, "and me?")
        await play.qq.wait_sent(1, to="group:72002")
        waited = time.monotonic() - begun
        assert not any(sent.chat == "group:72001" for sent in play.qq.sent)
        [sent] = await play.qq.wait_sent(1, to="group:72001")
        return waited, sent.text

    waited, said = play.run(scene())
    assert waited < 1
    assert said == "it hangs"
    [row] = play.calls(user)
    assert (row.outcome, "2 s" in row.result) == ("timed_out", True)


def test_a_server_that_fails_for_good_is_asked_a_few_times() -> None:
    """B10: one policy of trying again for all of Qiwo, and the chat is told within seconds."""

    async def scene(play: Stage, user: int) -> tuple[str, float]:  # measured on AstrBot
        for _ in range(9):
            play.model.fail(500)
        begun = time.monotonic()
        return await ask(play, user), time.monotonic() - begun

    with stage() as play:
        user = play.newcomer()
        said, seconds = play.run(scene(play, user))
        assert "模型服务出错了" in said
        assert seconds < 8
        assert play.run(play.ended(user, 1)) == ["failed"]
        assert len(play.model.requests) <= 3
