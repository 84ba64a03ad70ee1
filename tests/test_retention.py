"""What is older than its keeper wants leaves the record, its files and the memory; nothing else does."""

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.record import CHAT, record_turn
from tests.stage import stage

from kernel.adapters.embedded.blobs import FileBlobs
from kernel.adapters.embedded.memory import MemoryLedger
from kernel.media import place_of
from kernel.retention import Keeping, Retention
from kernel.testkit import FakeClock

DAY = 86400.0


def kept(folder: Path, content: bytes, *, at: float) -> Path:
    """A file that was last kept at that time."""
    place = place_of(content, "txt")
    asyncio.run(FileBlobs(folder).keep(place, content))
    os.utime(folder / place, (at, at))
    return folder / place


def files(folder: Path) -> set[bytes]:
    return {path.read_bytes() for path in (folder / "blobs").rglob("*") if path.is_file()}


def swept(folder: Path, keeping: Keeping, *idents: str, days: float = 0.0) -> tuple[list[str], int]:
    """The turns (closed at second 7) that are left after one look, so many days later; how often it was told."""
    told: list[None] = []

    async def play() -> list[str]:
        clock, ledger = FakeClock(), MemoryLedger()
        for ident in idents:
            record_turn(ledger, ident)
        clock.jump_wall(7.0 + days * DAY - clock.now())
        await Retention(keeping, ledger, FileBlobs(folder), clock, lambda: told.append(None)).sweep()
        left = [turn.id for turn in (await ledger.transcript(CHAT, 99)).turns]
        await ledger.close()
        return left

    return asyncio.run(play()), len(told)


def test_closed_turns_leave_when_their_days_are_over(tmp_path: Path) -> None:
    """All but the newest, by which resets are counted; memory is told to forget."""
    assert swept(tmp_path, Keeping(30, 10), "a", "b", "c", days=30.1) == (["c"], 1)
    assert swept(tmp_path, Keeping(30, 10), "a", "b", "c", days=29.9) == (["a", "b", "c"], 0)
    assert swept(tmp_path, Keeping(None, 10), "a", "b", "c", days=9999) == (["a", "b", "c"], 0)


def test_a_file_leaves_with_the_last_turn_that_kept_it(tmp_path: Path) -> None:
    """Kept again, it is as young as then."""
    kept(tmp_path, b"old", at=6.0)
    kept(tmp_path, b"old, and kept again", at=6.0)
    kept(tmp_path, b"old, and kept again", at=8.0)
    swept(tmp_path, Keeping(30, 1000), "a", days=30)
    assert files(tmp_path) == {b"old, and kept again"}


def test_keeping_a_file_again_makes_it_young(tmp_path: Path) -> None:
    path = kept(tmp_path, b"twice", at=1.0)
    asyncio.run(FileBlobs(tmp_path).keep(path.relative_to(tmp_path).as_posix(), b"twice"))
    assert path.stat().st_mtime > 1.0


def test_beyond_their_room_the_oldest_files_go(tmp_path: Path) -> None:
    """Whether the record still names them or not: the disk is not to be filled."""
    kept(tmp_path, b"1" * 400, at=3.0)
    kept(tmp_path, b"2" * 400, at=1.0)
    kept(tmp_path, b"3" * 400, at=2.0)
    swept(tmp_path, Keeping(None, 900))
    assert {content[:1] for content in files(tmp_path)} == {b"1", b"3"}


def test_what_a_killed_process_left_half_written_goes(tmp_path: Path) -> None:
    path = kept(tmp_path, b"whole", at=1.0)
    (path.parent / "tmpabc123").write_bytes(b"who")
    swept(tmp_path, Keeping(None, 900))
    assert files(tmp_path) == {b"whole"}


def test_the_bot_looks_by_itself(tmp_path: Path) -> None:
    """A record with old turns, opened with QIWO_KEEP_DAYS: they are gone, and the model is not shown them."""
    with stage(plugins=None, data=tmp_path) as play:

        async def scene() -> None:
            play.model.say("one")
            play.model.say("two")
            for question, answer in (("first", "one"), ("second", "two")):
                await play.qq.private_says(7001, question)
                await play.qq.sent.take(1, lambda sent, answer=answer: sent.text == answer)
            await play.ended(7001, 2)

        play.run(scene())
    with closing(sqlite3.connect(tmp_path / "qiwo.db")) as db, db:
        db.execute("UPDATE turns SET closed = closed - 3 * 86400 WHERE seq = 1")
    with stage(plugins=None, data=tmp_path, env={"QIWO_KEEP_DAYS": "2"}) as play:

        async def later() -> None:
            async with asyncio.timeout(10):
                while len(play.endings(7001)) > 1:
                    await asyncio.sleep(0.01)
            play.model.say("three")
            await play.qq.private_says(7001, "third")
            await play.qq.sent.take(1, lambda sent: sent.text == "three")

        play.run(later())
        said = str(play.model.requests[-1]["messages"])
        assert "second" in said
        assert "first" not in said
