"""A tool that crashes is refused at once, by the real app: C5's first half, and whose trouble it is."""

import re
from collections.abc import Iterator

import pytest
from tests.stage import Stage, stage, tools_in


@pytest.fixture
def play() -> Iterator[Stage]:
    with stage() as one:
        yield one


def test_three_crashes_close_the_tool_for_the_very_next_call(play: Stage) -> None:
    """C5, first half: the fourth call is refused with the seconds left, alone and beside others; /status shows it."""

    async def scene(user: int) -> str:
        for turn in range(3):
            play.model.call(("boom", {}))
            play.model.say(f"crash {turn}")
            await play.qq.private_says(user, "crash it", kind="temp", group=40001)
            await play.qq.wait_sent(1, to=f"private:{user}")
        play.model.call(("boom", {}), ("fine", {"word": "beside"}))
        play.model.call(("boom", {}))
        play.model.say("I give up")
        await play.qq.private_says(user, "crash it", kind="temp", group=40001)
        await play.qq.wait_sent(1, to=f"private:{user}")
        await play.qq.private_says(user, "/status", kind="temp", group=40001)
        [status] = await play.qq.wait_sent(1, to=f"private:{user}")
        return status.text

    user = play.newcomer()
    status = play.run(scene(user))
    rows = play.calls(user)
    assert [row.outcome for row in rows] == ["crashed"] * 3 + ["quarantined", "ok", "quarantined"]
    for row in (rows[3], rows[5]):
        assert re.search(r"boom is quarantined for (2\d|3[0-3]) more seconds", row.result)
    assert "boom" in tools_in(play.model.requests[0])
    assert "boom" not in tools_in(play.model.requests[-1])
    assert re.search(r"熔断（只在这个聊天）：trouble\.boom，还有 (2\d|3[0-3]) 秒", status)


def test_another_chat_still_uses_what_one_chat_crashed(play: Stage) -> None:
    """No group member can switch a tool off for everybody: other chats reach the tool itself."""

    async def scene(user: int, times: int) -> None:
        for _ in range(times):
            play.model.call(("leave", {}))
            play.model.say("tried")
            await play.qq.private_says(user, "leave", kind="temp", group=40001)
            await play.qq.wait_sent(1, to=f"private:{user}")

    culprit, other = play.newcomer(), play.newcomer()
    play.run(scene(culprit, 4))
    play.run(scene(other, 1))
    assert [row.outcome for row in play.calls(culprit)][-1] == "quarantined"
    assert [row.outcome for row in play.calls(other)] == ["crashed"]
