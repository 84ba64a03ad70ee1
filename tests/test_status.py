"""/status: a few lines that fit a phone, and what must not stay unseen."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from tests.parts import message, started, texts

from kernel.adapters.model.wire import Mended
from kernel.errors import FaultKind, ModelFault
from kernel.health import Row
from kernel.ports import Reply
from kernel.status import Status, status_text
from kernel.testkit import ScriptedModel, settle

WELL = Status(3725.0, "m", ("1000",), 2, Counter(answered=41), (), "", "", ())


def row(state: str, **changes: object) -> Row:
    values = {
        "plugin": "clock",
        "tool": "time_now",
        "chat": "",
        "state": state,
        "crashes": 3,
        "limit": 3,
        "seconds": 25.4,
        "k": 1,
        "error": "ValueError: words of a chat",
        "where": "clock.py:3",
        "last_reload": 0.0,
    }
    return Row(**{**values, **changes})  # type: ignore[arg-type]


def test_when_all_is_well_it_is_two_lines() -> None:
    """Up since when, which model, accounts, turns."""
    assert status_text(WELL, "here").splitlines() == [
        "企窝在线，已运行 1 小时 2 分，模型 m",
        "账号 1 个已连接，正在回答 2 轮，已答 41 轮",
    ]


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("quarantined", "熔断：clock.time_now，还有 25 秒（ValueError）"),
        ("half_open", "恢复中：clock.time_now"),
        ("reloading", "恢复中：clock.time_now"),
        ("disabled", "已停用：clock.time_now"),
    ],
)
def test_what_rests_has_a_line_without_the_words_of_a_chat(state: str, says: str) -> None:
    """The kind of the error only: its text may quote what somebody said elsewhere."""
    assert status_text(replace(WELL, health=(row(state),)), "here").splitlines()[2:] == [says]


def test_what_is_well_has_none() -> None:
    """Healthy and on probation are no news."""
    assert len(status_text(replace(WELL, health=(row("healthy"), row("probation"))), "here").splitlines()) == 2


def test_another_chats_trouble_is_not_told_here() -> None:
    """A tool that rests in one chat has its line there only; of many lines a few are told, and how many more."""
    there = replace(WELL, health=(row("quarantined", chat="there"),))
    assert len(status_text(there, "here").splitlines()) == 2
    assert len(status_text(there, "there").splitlines()) == 3
    assert "只在这个聊天" in status_text(there, "there")
    assert "只在这个聊天" not in status_text(replace(WELL, health=(row("quarantined"),)), "there")
    many = replace(WELL, health=tuple(row("disabled", tool=f"t{number}") for number in range(9)))
    assert status_text(many, "here").splitlines()[-1] == "还有 4 项在休息"


def test_a_broken_policy_file_is_said() -> None:
    """Since nobody has a tool meanwhile."""
    assert "策略文件有错" in status_text(replace(WELL, policy_problem="policy.toml:3: x"), "here")


def test_a_model_that_fails_is_said_until_it_answers() -> None:
    """An operator who asks /status sees why nobody gets an answer, and what to check."""

    async def play() -> list[str]:
        parts = await started(ScriptedModel(ModelFault(FaultKind.AUTH, "401"), Reply("x")))
        for text in ("one", "/status", "two", "/status"):
            await parts.kernel.submit(message(text, key=f"{text} {len(parts.channel.posted)}"))
            await settle()
        await parts.kernel.stop()
        return [said for said in texts(parts.channel) if said.startswith("企窝")]

    failing, well = asyncio.run(play())
    assert "⚠ 模型服务不认设置里的密钥，请管理员检查 QIWO_MODEL_KEY。" in failing.splitlines()
    assert "⚠" not in well


def test_a_mended_request_is_counted_named_and_shown() -> None:
    """The alarm that must never ring: when it does, /status says how often and which tools."""

    async def play() -> str:
        parts = await started(ScriptedModel(Reply("x")))
        for _ in range(2):
            parts.kernel._pairing_mended(Mended(("fine", "boom"), "no result"))
        await parts.kernel.submit(message("/status"))
        await settle()
        await parts.kernel.stop()
        return texts(parts.channel)[0]

    said = asyncio.run(play())
    assert "有 2 次请求在发出前修补过" in said
    assert "fine、boom" in said
