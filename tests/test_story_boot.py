"""What keeps the bot from starting is told in one sentence that says what to do, and destroys nothing."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.stage import ROOT

from kernel.testkit import BotProcess


def refusal(bot: BotProcess) -> str:
    """The last line of a start that failed; it must not be buried under a traceback."""
    with pytest.raises(RuntimeError, match=r"bot.py ended with 2") as caught, bot:
        pytest.fail("it started")
    assert "Traceback" not in str(caught.value)
    return str(caught.value).strip().splitlines()[-1]


def garbage(folder: Path) -> None:
    (folder / "qiwo.db").write_bytes(b"this is no database at all, but somebody may want it back" * 9)


def unwritable(folder: Path) -> None:
    (folder.parent / "file").write_text("x")


@pytest.mark.parametrize(
    ("prepare", "env", "says"),
    [
        (garbage, {}, "keep the file aside, and restore the newest backup"),
        (unwritable, {"QIWO_DATA_DIR": "{parent}/file/data"}, "nothing can be written in"),
        (lambda _: None, {"PORT": "abc"}, 'PORT (environment) is "abc": write a port'),
        (lambda _: None, {"SUPERUSERS": "me"}, "SUPERUSERS (environment)"),
        (lambda _: None, {"QIWO_MODEL_URL": "api.x.com"}, "QIWO_MODEL_URL (environment)"),
    ],
    ids=["garbage", "unwritable", "port", "superusers", "url"],
)
def test_one_sentence(prepare: Callable[[Path], None], env: dict[str, str], says: str, tmp_path: Path) -> None:
    """Exit status 2, one line that begins with `Qiwo:` and says what to do."""
    data = tmp_path / "data"
    data.mkdir()
    prepare(data)
    before = {path.name: path.read_bytes() for path in data.iterdir()}
    settings = {key: value.format(parent=tmp_path) for key, value in env.items()}
    line = refusal(BotProcess(ROOT, env=settings, data=data))
    assert line.startswith("Qiwo: ")
    assert says in line
    assert {name: (data / name).read_bytes() for name in before} == before


def test_a_second_bot_on_the_same_folder_is_sent_away(tmp_path: Path) -> None:
    """The first one goes on."""
    with BotProcess(ROOT, data=tmp_path) as first:
        line = refusal(BotProcess(ROOT, data=tmp_path))
        assert "stop the other bot on it, or set QIWO_DATA_DIR" in line
        assert "Traceback" not in first.log


def test_a_taken_port_is_named() -> None:
    """Before anything else is started."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        line = refusal(BotProcess(ROOT, env={"PORT": str(port)}))
        assert f"port {port} on 127.0.0.1 cannot be used" in line


def test_the_start_says_what_to_do_next() -> None:
    """Which model answers and where NapCat has to connect; with no model, how to set one. No secret is printed."""
    env = {
        "QIWO_MODEL_URL": "http://127.0.0.1:9",
        "QIWO_MODEL": "m-1",
        "QIWO_MODEL_KEY": "sk-hidden",
        "ONEBOT_ACCESS_TOKEN": "t-hidden",
    }
    with BotProcess(ROOT, env=env) as bot:
        [line] = [line for line in bot.log.splitlines() if "已就绪" in line]
        assert "模型 m-1；NapCat 的地址 ws://127.0.0.1:" in line
        assert "/onebot/v11/ws" in line
        assert "QIWO_PLAYGROUND=on" in line
        assert "hidden" not in bot.log
    with BotProcess(ROOT) as bot:
        [line] = [line for line in bot.log.splitlines() if "已就绪" in line]
        assert "演示模型" in line
        assert "QIWO_MODEL_URL" in line
