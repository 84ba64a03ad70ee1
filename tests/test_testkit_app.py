"""BotProcess: a real child process on its own port, with its own data and nobody else's settings."""

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from kernel.testkit import BotProcess
from kernel.testkit.app import clean

ALIVE = """
import json, os, signal, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()
        self.wfile.write(json.dumps(dict(os.environ)).encode())

server = HTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Handler)
if "STUBBORN" in os.environ:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("企窝 stands", os.getcwd())
server.serve_forever()
"""
DEAD = "import sys; print('why I died'); sys.exit(3)"
MUTE = "import signal; print('no server here'); signal.pause()"


def root_of(folder: Path, bot: str) -> Path:
    (folder / "bot.py").write_text(bot, encoding="utf-8")
    return folder


def alive(bot: BotProcess) -> bool:
    try:
        return httpx.get(f"{bot.url}/healthz", trust_env=False, verify=False).is_success
    except httpx.TransportError:
        return False


def test_it_starts_with_its_own_settings_in_its_own_folder_and_ends_with_the_block(tmp_path: Path) -> None:
    """Port, data and folder (so no .env of the developer) are its own, `env` is added, nothing is left behind."""
    with BotProcess(root_of(tmp_path, ALIVE), env={"QIWO_MODEL": "m"}) as bot:
        seen = json.loads(httpx.get(f"{bot.url}/healthz", trust_env=False, verify=False).text)
        assert (seen["PORT"], seen["HOST"], seen["QIWO_MODEL"]) == (str(bot.port), "127.0.0.1", "m")
        assert seen["QIWO_DATA_DIR"] == str(bot.data)
        assert bot.onebot == f"ws://127.0.0.1:{bot.port}/onebot/v11/ws"
        assert f"企窝 stands {bot.data.parent}" in bot.log
        home = bot.data.parent
        assert home.exists()
    assert not alive(bot)
    assert not home.exists()


def test_nobody_elses_settings_get_in() -> None:
    """What the app would read as a setting is taken out of the environment; the rest stays."""
    settings = {"QIWO_MODEL": "x", "qiwo_data_dir": "x", "ONEBOT_ACCESS_TOKEN": "x", "SUPERUSERS": "1", "Port": "1"}
    assert clean({**settings, "PATH": "/bin", "HOME": "/home/me"}) == {"PATH": "/bin", "HOME": "/home/me"}


def test_a_process_that_dies_at_once_is_told_with_its_words(tmp_path: Path) -> None:
    """No waiting for one that has ended: its exit code and its output are the error."""
    with (
        pytest.raises(RuntimeError, match=r"ended with 3:\nwhy I died"),
        BotProcess(root_of(tmp_path, DEAD), data=tmp_path / "data"),
    ):
        pytest.fail("it never stood")


def test_a_process_that_never_answers_is_ended(tmp_path: Path) -> None:
    """When patience is at its end the process is ended too."""
    bot = BotProcess(root_of(tmp_path, MUTE), patience=1.0)
    with pytest.raises(RuntimeError, match="did not answer within 1 s"), bot:
        pytest.fail("it never stood")
    assert bot.wait(0) == -signal.SIGTERM


def test_killed_and_started_again_it_finds_its_data(tmp_path: Path) -> None:
    """`kill` leaves no last word; `start` keeps port, data and log."""
    data = tmp_path / "data"
    with BotProcess(root_of(tmp_path, ALIVE), data=data) as bot:
        data.mkdir()
        (data / "kept").touch()
        port = bot.port
        bot.kill()
        assert bot.wait() == -signal.SIGKILL
        assert not alive(bot)
        bot.start()
        assert alive(bot)
        assert (bot.port, bot.log.count("stands")) == (port, 2)
        bot.terminate()
        assert bot.wait() == -signal.SIGTERM
    assert (data / "kept").exists()


def test_one_that_will_not_go_is_killed(tmp_path: Path) -> None:
    """After `patience` the polite word is followed by the other one."""
    bot = BotProcess(root_of(tmp_path, ALIVE), env={"STUBBORN": "1"})
    with bot:
        bot.patience = 0.1
        bot.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            bot.wait()
    assert bot.wait() == -signal.SIGKILL


def test_the_loop_goes_on_while_it_starts(tmp_path: Path) -> None:
    """`async with` leaves the loop free for a fake model and a fake QQ."""

    async def story() -> None:
        ticks = 0

        async def ticker() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        beside = asyncio.create_task(ticker())
        async with BotProcess(root_of(tmp_path, ALIVE)) as bot:
            assert ticks > 10
            assert alive(bot)
        beside.cancel()
        assert not alive(bot)

    asyncio.run(story())
