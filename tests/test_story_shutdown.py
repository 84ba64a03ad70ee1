"""Shutdown through the real app: quick, and truthful about what it cut off (RULINGS: both signals, a sync tool)."""

import asyncio
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.stage import PLUGINS, ROOT

from kernel.testkit import BotProcess, FakeModel, FakeQQ


@pytest.mark.parametrize("tool", ["slow", "slow_in_thread"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_a_signal_ends_the_process_in_three_seconds(number: signal.Signals, tool: str, tmp_path: Path) -> None:
    """With a 20 s tool running: out in under 3 s, its call recorded as cancelled, its turn left for the next one."""

    async def scene() -> float:
        async with FakeModel() as model:
            env = {"QIWO_MODEL_URL": model.url, "QIWO_MODEL": "m", "QIWO_PLUGIN_DIRS": str(PLUGINS)}
            bot = BotProcess(ROOT, env=env, data=tmp_path)
            async with bot, FakeQQ(bot.onebot) as qq:
                model.call((tool, {"seconds": 20}))
                await qq.private_says(20002, "sleep")
                async with asyncio.timeout(10):
                    while not started(tmp_path, tool):
                        await asyncio.sleep(0.02)
                begun = time.monotonic()
                process = bot._process
                assert isinstance(process, subprocess.Popen)
                process.send_signal(number)
                await asyncio.to_thread(bot.wait, 20)
                assert "Traceback" not in bot.log
                return time.monotonic() - begun

    assert asyncio.run(scene()) < 3.0
    with closing(sqlite3.connect(tmp_path / "qiwo.db")) as db:
        [(outcome, result)] = db.execute("SELECT outcome, result FROM calls WHERE step >= 0").fetchall()
        assert outcome == "cancelled"
        assert "shutdown" in result
        assert db.execute("SELECT ending FROM turns").fetchall() == [(None,)]


def started(data: Path, tool: str) -> bool:
    with closing(sqlite3.connect(f"file:{data / 'qiwo.db'}?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT 1 FROM calls WHERE name = ? AND started IS NOT NULL", (tool,)).fetchall()
    return bool(rows)
