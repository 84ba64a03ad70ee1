"""Accounts and their connections, through the real app: public reports, each as it should have gone.

E9 stands in test_story_sends.py, with the other ways in which sending ends.
"""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from tests.stage import Stage, stage

from kernel.testkit import FakeQQ
from kernel.testkit.segments import at_segment

OURS, SECOND = 10000, 10001
GROUP = 73001


@pytest.fixture
def play() -> Iterator[Stage]:
    with stage() as one:
        yield one


async def until(there: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not there():
            await asyncio.sleep(0.01)


def test_the_newest_connection_of_an_account_speaks(play: Stage) -> None:
    """E1: it connects again before the old connection has ended; what is said leaves by the new one, then and after."""

    async def scene(user: int) -> None:  # AstrBot#10154
        old = play.qq
        async with FakeQQ(play.bot.onebot, world=old.world) as new:
            for text in ("both are open", "the old one is closed"):
                gate = play.model.gate()
                play.model.say(text)
                await new.private_says(user, "go")
                await play.model.wait_requests(1)
                if "closed" in text:
                    await old.close()
                gate.set()
                await new.wait_sent(1, to=f"private:{user}")
                assert [call.action for call in new.calls].count("send_private_msg") == 1 + ("closed" in text)
            assert not any(call.action == "send_private_msg" for call in old.calls)

    user = play.newcomer()
    play.run(scene(user))
    assert play.run(play.ended(user, 2)) == ["answered"] * 2


def test_a_message_that_comes_over_two_sockets_is_answered_once(play: Stage) -> None:
    """E2: the same event over an old and a new connection, and once more when the bot has started again."""

    async def scene(user: int) -> None:  # AstrBot#7259, AstrBot#5848
        event = play.qq.world.group_message(
            GROUP, user, [at_segment(OURS), {"type": "text", "data": {"text": " once"}}]
        )
        await play.qq.raw_event(event)
        await play.qq.wait_sent(1, to=f"group:{GROUP}")
        async with FakeQQ(play.bot.onebot, world=play.qq.world) as new:
            await new.raw_event(event)
            await new.group_says(GROUP, user, "next")
            [sent] = await new.wait_sent(1, to=f"group:{GROUP}")
            assert sent.text.endswith("next")
            await play.ended(user, 2)
        play.bot.kill()
        await asyncio.to_thread(play.bot.wait)
        await asyncio.to_thread(play.bot.start)
        await play.qq.connect()
        await play.qq.raw_event(event)
        await play.qq.group_says(GROUP, user, "after the start")
        [sent] = await play.qq.wait_sent(1, to=f"group:{GROUP}")
        assert sent.text.endswith("after the start")

    user = play.newcomer()
    play.run(scene(user))
    assert play.run(play.ended(user, 3)) == ["answered"] * 3


def test_two_of_our_accounts_do_not_talk_to_each_other(play: Stage) -> None:
    """E8: both sit in the group, each sees what the other says, even that it is named: one question, one answer."""

    async def scene(user: int) -> None:
        async with FakeQQ(play.bot.onebot, account=SECOND) as second:
            await second.heartbeat()
            await until(lambda: f"Bot {SECOND} connected" in play.bot.log)
            play.model.on(lambda _: "what do you think?")
            await play.qq.group_says(GROUP, user, "hello")
            for speaker, hearer in ((play.qq, second), (second, play.qq)) * 3:
                author = speaker.world.account
                said = [at_segment(hearer.world.account), {"type": "text", "data": {"text": " what do you think?"}}]
                await hearer.raw_event(hearer.world.group_message(GROUP, author, said))
            await play.qq.wait_sent(1, to=f"group:{GROUP}")
            await second.group_says(GROUP, user, "and you?")
            await second.wait_sent(1, to=f"group:{GROUP}")
            assert len(play.qq.sent) + len(second.sent) == 2
            assert len(play.model.requests) == 2

    play.run(scene(play.newcomer()))
