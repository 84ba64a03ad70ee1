"""/why, one conversation for each member, and the file that says so."""

import asyncio
from pathlib import Path

import pytest
from tests.parts import message, started, texts
from tests.test_session import tools

from kernel.chats import Chats
from kernel.errors import ConfigError
from kernel.ports import NotSent, Reply
from kernel.source import ConversationId, Role, Scene, SceneKind, Source
from kernel.testkit import RecordingChannel, ScriptedModel, calling, settle


def test_why_tells_the_last_turn_in_five_lines() -> None:
    """Who asked what, what the model did, each tool with its rule, the delivery, the ending; from the record."""

    async def play() -> None:
        channel = RecordingChannel(NotSent("muted"))
        model = ScriptedModel(calling(("look", {}), ("look", {}), ("nothing", {}), ("pin", {})), Reply("here"))
        parts = await started(model, tools([]), channel=channel)
        await parts.kernel.submit(message("what is there?", role=Role.STRANGER))
        await settle()
        await parts.kernel.submit(message("/why", role=Role.STRANGER))
        await settle()
        first, second, third, fourth, fifth = texts(channel)[-1].splitlines()
        assert "20002（stranger）说「what is there?」" in first
        assert second.startswith("模型答了 2 次")
        assert "look 被拒" in third or "look 成功" in third
        assert "nothing 没有这个工具" in third
        assert "pin 被拒" in third
        assert fourth == "回答：没有送达（not sent: muted）"
        assert fifth.startswith("结局：失败")
        await parts.kernel.stop()

    asyncio.run(play())


def test_a_member_hears_of_his_own_turn_only() -> None:
    """An admin hears of anybody's; somebody who has had none is told how to get one; a running turn is told, too."""

    async def play() -> None:
        gate = asyncio.Event()
        parts = await started(ScriptedModel(gate, Reply("a")))
        await parts.kernel.submit(message("mine", user="2", role=Role.MEMBER, chat="100"))
        await settle()
        for user, role in (("2", Role.MEMBER), ("3", Role.MEMBER), ("4", Role.ADMIN)):
            await parts.kernel.submit(message("/why", user=user, role=role, chat="100", key=f"why {user}"))
            await settle()
        own, nothing, any_turn = texts(parts.channel)
        assert "「mine」" in own
        assert "还在进行" in own
        assert "还没有你的对话记录" in nothing
        assert any_turn == own
        gate.set()
        await parts.kernel.stop()

    asyncio.run(play())


# -- apart ---------------------------------------------------------------------------------------------------


def source(user: str, group: str = "100") -> Source:
    return Source("qq", "1", Scene(SceneKind.GROUP, group), user, Role.MEMBER)


def write(folder: Path, text: str) -> Path:
    path = folder / "qiwo.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_each_chat_has_its_own_settings(tmp_path: Path) -> None:
    """What a chat leaves out is as in [defaults]; without a file every group has one conversation."""
    none = Chats.load(tmp_path / "qiwo.toml")
    assert none.conversation(source("2")) == none.conversation(source("3")) == ConversationId("qq/1/group/100")
    chats = Chats.load(write(tmp_path, '[defaults]\napart = true\n[chats."group:200"]\napart = false\n'))
    assert chats.conversation(source("2")) != chats.conversation(source("3"))
    assert chats.conversation(source("2", "200")) == chats.conversation(source("3", "200"))
    private = Source("qq", "1", Scene(SceneKind.PRIVATE, "2"), "2", Role.FRIEND)
    assert chats.conversation(private) == ConversationId("qq/1/private/2")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[defaults]\napart = 1\n", "defaults.apart is 1"),
        ("[defaults]\nappart = true\n", "defaults.appart is not a setting: write one of apart"),
        ("[chat]\napart = true\n", "chat is not a setting: write one of defaults, chats"),
        ('[chats."group:1"]\napart = "yes"\n', "apart is 'yes'"),
        ('[chats."grp:1"]\napart = true\n', "grp:1"),
        ("[defaults\n", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    """It names the file and the key, and says what may stand there."""
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        Chats.load(path)
    assert str(path) in str(error.value)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_members_who_are_apart_do_not_wait_for_one_another(tmp_path: Path) -> None:
    """Nor do they read each other's thread; each may reset his own."""

    async def play() -> None:
        gate = asyncio.Event()
        model = ScriptedModel(gate)
        chats = Chats.load(write(tmp_path, "[defaults]\napart = true\n"))
        parts = await started(model, chats=chats)
        await parts.kernel.submit(message("slow", user="2", role=Role.MEMBER, chat="100"))
        await settle()
        model.then(Reply("for three"), Reply("for two"))
        await parts.kernel.submit(message("quick", user="3", role=Role.MEMBER, chat="100"))
        await settle()
        assert texts(parts.channel) == ["for three"]
        gate.set()
        await settle()
        assert [len(request.turns) for request in model.requests] == [1, 1]
        await parts.kernel.submit(message("/reset", user="2", role=Role.MEMBER, chat="100"))
        await settle()
        assert "从头开始" in texts(parts.channel)[-1]
        await parts.kernel.stop()

    asyncio.run(play())
