"""`qiwo export`, `qiwo backup`, `qiwo restore`, as an operator runs them: beside a bot, and on what went wrong."""

import io
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
from tests.stage import ROOT, stage

from kernel.adapters.embedded.database import VERSION


def qiwo(data: Path, *arguments: object, cwd: Path | None = None) -> tuple[int, str, str]:
    """The command in a process of its own: its exit status, what it said, what it complained of."""
    env = {**os.environ, "QIWO_DATA_DIR": str(data), "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "qiwo", *map(str, arguments)]
    done = subprocess.run(command, env=env, cwd=cwd or data.parent, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bot's data, a backup that was made while it ran, and one with its secrets."""
    place = tmp_path_factory.mktemp("lived")
    data = place / "data"
    with stage(data=data) as play:

        async def scene() -> None:
            play.model.call(("output_send__qq", {"text": "by tool"}))
            play.model.say("hello")
            await play.qq.private_says(7001, "你好")
            await play.qq.sent.take(1, lambda sent: sent.text == "hello")
            await play.ended(7001, 1)

        play.run(scene())
        (data / "secrets").mkdir(exist_ok=True)
        (data / "secrets" / "onebot_token").write_text("s3cret")
        (data / "blobs" / "ab").mkdir(parents=True)
        (data / "blobs" / "ab" / "abcd.txt").write_text("long")
        os.utime(data / "blobs" / "ab" / "abcd.txt", (1e9, 1e9))
        (place / "elsewhere.toml").write_text("# mine\n")
        (data / "policy.toml").symlink_to(place / "elsewhere.toml")
        assert qiwo(data, "backup", place / "plain.tar.gz")[0] == 0
        assert qiwo(data, "backup", "--secrets", place / "all.tar.gz")[0] == 0
        assert qiwo(data, "export", "--out", place / "all.jsonl")[0] == 0
    return place


def turns(data: Path) -> int:
    with closing(sqlite3.connect(data / "qiwo.db")) as db:
        [count] = db.execute("SELECT count(*) FROM turns WHERE ending = 'answered'").fetchone()
        return int(count)


def test_an_export_holds_every_turn_whole(lived: Path) -> None:
    """Made while the bot ran: who asked, what was called with which result, what was answered."""
    [turn] = map(json.loads, (lived / "all.jsonl").read_text("utf-8").splitlines())
    assert turn["chat"].endswith("/private/7001")
    assert turn["inbounds"][0]["text"] == "你好"
    assert turn["ending"] == "answered"
    [call] = turn["steps"][0]["calls"]
    assert (call["name"], call["outcome"], call["result"]) == ("output_send__qq", "ok", "sent")
    assert json.loads(call["arguments"]) == {"text": "by tool"}
    assert (turn["reply"]["arguments"], turn["reply"]["outcome"]) == ("hello", "ok")
    assert stat.S_IMODE((lived / "all.jsonl").stat().st_mode) == 0o600


def test_an_export_of_one_chat(lived: Path) -> None:
    status, said, complained = qiwo(lived / "data", "export", "--chat", "qq/1/group/2")
    assert (status, said) == (1, "")
    assert "holds no chat 'qq/1/group/2'" in complained
    known = complained.strip().rsplit(" ", 1)[1]
    status, said, _ = qiwo(lived / "data", "export", "--chat", known)
    assert status == 0
    assert json.loads(said)["chat"] == known
    assert qiwo(lived / "data", "export", "--chat", "no", "--out", lived / "half.jsonl")[0] == 1
    assert not (lived / "half.jsonl").exists()


def test_a_backup_is_the_folder_without_its_secrets(lived: Path) -> None:
    """They are in it only when asked for; what a link leads to is in it, and working files never."""
    with tarfile.open(lived / "plain.tar.gz") as plain, tarfile.open(lived / "all.tar.gz") as whole:
        assert sorted(plain.getnames()) == ["blobs/ab/abcd.txt", "policy.toml", "qiwo.db"]
        assert set(whole.getnames()) - set(plain.getnames()) == {"secrets/onebot_token"}
        policy = plain.extractfile("policy.toml")
        assert policy is not None
        assert policy.read() == b"# mine\n"
    assert stat.S_IMODE((lived / "plain.tar.gz").stat().st_mode) == 0o600


def test_a_backup_overwrites_nothing(lived: Path) -> None:
    before = (lived / "plain.tar.gz").read_bytes()
    status, _, complained = qiwo(lived / "data", "backup", lived / "plain.tar.gz")
    assert status == 1
    assert "exists already" in complained
    assert (lived / "plain.tar.gz").read_bytes() == before


@pytest.mark.parametrize("command", ["backup", "export"])
def test_where_nothing_is_a_sentence_says_so(lived: Path, command: str) -> None:
    status, _, complained = qiwo(lived / "nowhere", command)
    assert status == 1
    assert "start the bot once, or set QIWO_DATA_DIR" in complained
    assert not (lived / "nowhere").exists()


def test_a_restored_bot_goes_on(lived: Path, tmp_path: Path) -> None:
    """On a folder in which something else happened since: that is kept aside, the secrets stay."""
    data = tmp_path / "data"
    shutil.copytree(lived / "data", data)
    os.utime(data / "blobs" / "ab" / "abcd.txt")
    with closing(sqlite3.connect(data / "qiwo.db")) as db, db:
        db.execute("UPDATE turns SET ending = 'failed'")
    (data / "qiwo.toml").write_text("# later\n")
    status, said, _ = qiwo(data, "restore", lived / "plain.tar.gz")
    assert status == 0
    aside = Path(said.strip().rsplit(" ", 1)[1])
    assert turns(data) == 1
    assert turns(aside) == 0
    assert (aside / "qiwo.toml").read_text() == "# later\n"
    assert sorted(path.name for path in data.iterdir()) == sorted(
        ["qiwo.db", "qiwo.db.lock", "blobs", "policy.toml", "secrets", aside.name]
    )
    assert (data / "secrets" / "onebot_token").read_text() == "s3cret"
    kept, was = (folder / "blobs" / "ab" / "abcd.txt" for folder in (data, lived / "data"))
    assert kept.stat().st_mtime == pytest.approx(was.stat().st_mtime, abs=1)  # by which it ages
    with stage(data=data) as play:

        async def scene() -> None:
            play.model.say("again")
            await play.qq.private_says(7001, "still there?")
            await play.qq.sent.take(1, lambda sent: sent.text == "again")

        play.run(scene())
        assert "你好" in str(play.model.requests[-1]["messages"])


def test_nothing_is_restored_under_a_running_bot(lived: Path, tmp_path: Path) -> None:
    with stage(data=tmp_path / "data") as play:
        status, _, complained = qiwo(play.bot.data, "restore", lived / "plain.tar.gz")
        assert status == 1
        assert "is in use" in complained
        assert play.query("SELECT count(*) FROM turns") == [(0,)]
        assert play.qq.connected


def packed(path: Path, **members: bytes) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def record_of(tmp_path: Path, version: int) -> bytes:
    path = tmp_path / "made.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE a (b)")
        db.execute(f"PRAGMA user_version = {version}")
    return path.read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("../outside", b"x", "which no backup does"),
        ("/tmp/outside", b"x", "which no backup does"),
        ("notes.txt", b"x", "holds no record"),
        ("qiwo.db", b"no database at all" * 100, "is damaged"),
        ("qiwo.db", None, "update Qiwo"),
    ],
)
def test_what_is_no_backup_changes_nothing(
    lived: Path, tmp_path: Path, name: str, content: bytes | None, says: str
) -> None:
    """A clear sentence, and the folder as it was."""
    data = tmp_path / "data"
    shutil.copytree(lived / "data", data)
    before = sorted(path.name for path in data.rglob("*"))
    content = record_of(tmp_path, VERSION + 1) if content is None else content
    status, _, complained = qiwo(data, "restore", packed(tmp_path / "bad.tar.gz", **{name: content}))
    assert status == 1
    assert says in complained
    assert "Traceback" not in complained
    assert sorted(path.name for path in data.rglob("*")) == before
    assert turns(data) == 1


def test_a_cut_off_archive_changes_nothing(lived: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(lived / "data", data)
    whole = (lived / "plain.tar.gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    status, _, complained = qiwo(data, "restore", tmp_path / "cut.tar.gz")
    assert status == 1
    assert "Traceback" not in complained
    assert turns(data) == 1
    assert qiwo(data, "restore", tmp_path / "no such file")[0] == 1
