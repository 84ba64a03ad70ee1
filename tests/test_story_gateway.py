"""OneBot events as they come, through the real app: who spoke, where, to whom; and what is not for the bot."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.stage import Stage, stage

from kernel.testkit import FakeQQ

ACCOUNT = 10000


@pytest.fixture(scope="module")
def play() -> Iterator[Stage]:
    with stage(env={"NICKNAME": "企窝"}) as one:
        yield one


def question(play: Stage) -> str:
    """What the model was asked last: the speaker's line and the text."""
    content = play.model.requests[-1]["messages"][-1]["content"]
    assert isinstance(content, str)
    return content


def event(play: Stage, group: int, user: int, message: object, **changes: Any) -> dict[str, Any]:
    """A group message as NapCat posts it, with changes; None takes a key out."""
    raw = play.qq.world.group_message(group, user, [{"type": "text", "data": {"text": "x"}}])
    raw = {**raw, "message": message, "raw_message": "x", **changes}
    return {key: value for key, value in raw.items() if value is not None}


def answered(play: Stage, raw: dict[str, Any], to: str) -> str:
    """Post the event, and return what the model was asked."""

    async def scene() -> str:
        play.model.say("ok")
        await play.qq.raw_event(raw)
        await play.qq.wait_sent(1, to=to)
        return question(play)

    return play.run(scene())


def at(qq: object, text: str) -> list[dict[str, Any]]:
    return [{"type": "at", "data": {"qq": qq}}, {"type": "text", "data": {"text": text}}]


@pytest.mark.parametrize("qq", [str(ACCOUNT), ACCOUNT], ids=["text", "number"])
def test_an_at_wakes_the_bot(play: Stage, qq: object) -> None:
    """The id may be text or a number; the mention itself is not part of the question."""
    user = play.newcomer()
    asked = answered(play, event(play, 80001, user, at(qq, " hello")), "group:80001")
    assert asked.splitlines()[0].startswith(f"[user {user} | role member | ")
    assert asked.splitlines()[1:] == ["hello"]


def test_a_nickname_wakes_the_bot(play: Stage) -> None:
    """NICKNAME at the beginning of a line."""
    raw = event(play, 80001, play.newcomer(), [{"type": "text", "data": {"text": "企窝，在吗"}}])
    assert "在吗" in answered(play, raw, "group:80001")


@pytest.mark.parametrize("role", ["owner", "admin", "member"])
def test_the_role_is_the_events(play: Stage, role: str) -> None:
    """sender.role, in this group."""
    user = play.newcomer()
    raw = event(play, 80002, user, at(ACCOUNT, " hi"), sender={"user_id": user, "nickname": "n", "role": role})
    assert f"| role {role} |" in answered(play, raw, "group:80002")


@pytest.mark.parametrize("sender", [{}, {"role": None}, {"role": "king"}, {"nickname": "n", "card": None}])
def test_a_missing_or_strange_role_is_a_members(play: Stage, sender: dict[str, Any]) -> None:
    """The least that anybody in a group has."""
    user = play.newcomer()
    raw = event(play, 80002, user, at(ACCOUNT, " hi"), sender=sender)
    assert "| role member |" in answered(play, raw, "group:80002")


def test_an_anonymous_speaker_is_nobody(play: Stage) -> None:
    """80000000 is shared by all of them: no right is read from it, not even an operator's id would help."""
    anonymous = {"id": 1, "name": "匿名", "flag": "f"}
    raw = event(play, 80003, 80000000, at(ACCOUNT, " hi"), sub_type="anonymous", anonymous=anonymous)
    assert "| role anonymous |" in answered(play, raw, "group:80003")


@pytest.mark.parametrize(
    ("sub_type", "scene", "role"),
    [("friend", "private", "friend"), ("group", "temp", "stranger"), ("other", "private", "stranger")],
)
def test_private_chats_are_told_apart(play: Stage, sub_type: str, scene: str, role: str) -> None:
    """A temp chat carries a group's id and is no group; its speaker is a stranger, whatever he is in the group."""
    user = play.newcomer()
    raw = play.qq.world.friend_message(user, [{"type": "text", "data": {"text": "hi"}}])
    raw = {**raw, "sub_type": sub_type, "group_id": 80004, "sender": {**raw["sender"], "role": "owner"}}
    assert f"| role {role} |" in answered(play, raw, f"private:{user}")
    [(kind,)] = play.query(
        "SELECT json_extract(source, '$.scene.kind') FROM turns WHERE json_extract(source, '$.user') = ?", str(user)
    )
    assert kind == scene


def test_what_is_no_text_is_told_by_name(play: Stage) -> None:
    """Pictures, faces, mentions and unknown segments reach the model as words, in order; nothing crashes."""
    message = [
        {"type": "at", "data": {"qq": str(ACCOUNT)}},
        {"type": "text", "data": {"text": " look "}},
        {"type": "image", "data": {"file": "a.png", "url": "http://127.0.0.1:9/a.png"}},
        {"type": "face", "data": {"id": "178"}},
        {"type": "at", "data": {"qq": "20009"}},
        {"type": "flash_file", "data": {"x": 1}},
    ]
    asked = answered(play, event(play, 80005, play.newcomer(), message), "group:80005")
    assert asked.splitlines()[1] == "look [图片][表情]@20009 [flash_file]"


def test_a_quote_is_told_with_its_author_and_taints(play: Stage) -> None:
    """The quoted words come first, under the id of who said them; the turn is marked as holding foreign words."""

    async def scene(user: int, other: int) -> str:
        quoted = await play.qq.group_says(80006, other, "ban everybody", at_bot=False)
        play.model.say("no")
        reply = [{"type": "reply", "data": {"id": str(quoted)}}, *at(str(ACCOUNT), " do that")]
        await play.qq.raw_event(event(play, 80006, user, reply))
        await play.qq.wait_sent(1, to="group:80006")
        return question(play)

    user, other = play.newcomer(), play.newcomer()
    asked = play.run(scene(user, other))
    assert asked.splitlines()[1:] == [f"[引用 {other} 的话：ban everybody]", "do that"]
    [(tainted,)] = play.query("SELECT tainted FROM turns WHERE json_extract(source, '$.user') = ?", str(user))
    assert tainted == 1


def test_the_same_message_is_answered_once(play: Stage) -> None:
    """E2: delivered three times, also over a second socket's event with ids as text; one turn, one reply."""

    async def scene(user: int) -> int:
        raw = event(play, 80007, user, at(ACCOUNT, " once"))
        play.model.say("only once")
        for copy in (raw, raw, {**raw, "group_id": "80007", "user_id": str(user)}):
            await play.qq.raw_event(copy)
        await play.qq.wait_sent(1, to="group:80007")
        play.model.say("next")
        await play.qq.group_says(80007, user, "next")
        [sent] = await play.qq.wait_sent(1, to="group:80007")
        assert sent.text == "next"
        return sum(sent.chat == "group:80007" for sent in play.qq.sent)

    assert play.run(scene(play.newcomer())) == 2


def test_the_bot_does_not_answer_itself_or_its_other_accounts(play: Stage) -> None:
    """E8: its own message, posted as an event, and a message of a second account of ours, wake nobody."""

    async def scene(user: int) -> None:
        async with FakeQQ(play.bot.onebot, account=10001) as second:
            await second.heartbeat()
            async with asyncio.timeout(5):
                while "Bot 10001 connected" not in play.bot.log:
                    await asyncio.sleep(0.01)
            before = len(play.model.requests)
            for own in (ACCOUNT, 10001):
                await play.qq.raw_event(event(play, 80008, own, at(ACCOUNT, " hello me")))
            play.model.say("hello you")
            await play.qq.group_says(80008, user, "hello")
            await play.qq.wait_sent(1, to="group:80008")
            assert len(play.model.requests) == before + 1

    play.run(scene(play.newcomer()))


def test_a_bare_at_gets_an_answer(play: Stage) -> None:
    """Nothing but a mention is still a question."""
    raw = event(play, 80009, play.newcomer(), [{"type": "at", "data": {"qq": str(ACCOUNT)}}])
    assert "没有写字" in answered(play, raw, "group:80009")
