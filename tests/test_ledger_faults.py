"""What the record does when the disk, the file or another process is not as it should be.

Each time one sentence that says what to do, and nothing destroyed.
"""

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from tests.record import item, record_turn

from kernel.adapters.embedded.database import VERSION, open_database, run, run_group
from kernel.adapters.embedded.ledger import SqliteLedger
from kernel.adapters.embedded.memory import MemoryLedger
from kernel.errors import LedgerFault
from kernel.ports import Accepted

ROOT = Path(__file__).resolve().parent.parent

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals, limits and modes of POSIX")


def fault_of_opening(path: Path) -> str:
    """Why the record cannot be opened: one line. Nothing stays open behind the fault."""
    before = open_files()

    async def scene() -> None:
        SqliteLedger(path)

    with pytest.raises(LedgerFault) as caught:
        asyncio.run(scene())
    assert open_files() == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def open_files() -> list[str]:
    """The ordinary files that this process holds; nothing where the system does not tell."""
    handles = Path("/proc/self/fd").glob("*") if sys.platform == "linux" else ()
    return sorted(str(handle.readlink()) for handle in handles if handle.is_file())


def opens(path: Path) -> None:
    async def scene() -> None:
        ledger = SqliteLedger(path)
        record_turn(ledger, f"t{(await ledger.seen(100))!r}")
        await ledger.close()

    asyncio.run(scene())


def child(code: str, *arguments: object) -> "subprocess.Popen[str]":
    """Another process, with the kernel and the tests' values at hand; `argv` begins with `arguments`."""
    lines = [
        "import asyncio, os, sys",
        "from pathlib import Path",
        "from tests.record import *",
        "from kernel.adapters.embedded.ledger import SqliteLedger",
        "from kernel.errors import LedgerFault",
        "argv = sys.argv[1:]",
        code,
    ]
    command = [sys.executable, "-c", "\n".join(lines), *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=env, text=True, stdin=pipe, stdout=pipe, stderr=pipe)


def output_of(process: "subprocess.Popen[str]") -> str:
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    return out


# -- the file ------------------------------------------------------------------------------------------------


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    """Nothing is made up in a place that was only misspelt."""
    sentence = fault_of_opening(tmp_path / "data" / "qiwo.db")
    assert sentence.endswith("No such file or directory; check that the data folder exists and may be written")
    assert list(tmp_path.iterdir()) == []


@posix
def test_a_folder_that_may_not_be_written() -> None:
    """The sentence names it; what others own is not touched."""
    code = """
os.getuid() or os.setuid(65534)  # root may write everywhere
async def scene():
    try:
        SqliteLedger(Path(argv[0]))
    except LedgerFault as fault:
        print(fault)
asyncio.run(scene())
"""
    with tempfile.TemporaryDirectory() as name:  # where another user may at least look
        folder = Path(name)
        folder.chmod(0o555)
        out = output_of(child(code, folder / "qiwo.db"))
        assert list(folder.iterdir()) == []
        folder.chmod(0o700)
    assert out.startswith(name)
    assert out.endswith(": Permission denied; check that the data folder exists and may be written\n")


def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path: Path) -> None:
    """It may be somebody's; and once it is gone, the same process can open a record there."""
    path = tmp_path / "qiwo.db"
    path.write_bytes(b"Dear diary, " * 1000)
    sentence = fault_of_opening(path)
    assert sentence == f"{path}: file is not a database; keep the file aside, and restore the newest backup"
    assert path.read_bytes() == b"Dear diary, " * 1000
    path.unlink()
    opens(path)


def test_a_folder_in_the_place_of_the_file(tmp_path: Path) -> None:
    """The wrong kind of thing is a sentence too."""
    (tmp_path / "qiwo.db").mkdir()
    assert "check that the data folder exists and may be written" in fault_of_opening(tmp_path / "qiwo.db")


def test_the_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    """No table of ours is put among its own."""
    path = tmp_path / "qiwo.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE recipes (name TEXT)")
    before = path.read_bytes()
    assert "is a database of another program; keep it aside" in fault_of_opening(path)
    assert path.read_bytes() == before


def test_a_newer_schema_is_left_alone(tmp_path: Path) -> None:
    """After a downgrade nothing is written into what this version does not understand."""
    path = tmp_path / "qiwo.db"
    opens(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
        db.execute("UPDATE turns SET ending = NULL")  # recovery would close it
        db.commit()
        db.execute("PRAGMA journal_mode = DELETE")
    before = path.read_bytes()
    sentence = fault_of_opening(path)
    assert sentence.endswith(f"was written by a newer Qiwo (schema {VERSION + 1}); update Qiwo, or restore a backup")
    assert path.read_bytes() == before


def test_a_damaged_file_is_kept(tmp_path: Path) -> None:
    """Pages that were overwritten end in a sentence, at the start or at the first question that meets them."""
    path = tmp_path / "qiwo.db"
    opens(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    before = path.read_bytes()
    sentence = fault_of_opening(path)
    assert sentence.endswith("the database is damaged: keep the file, and restore the newest backup")
    assert path.read_bytes() == before


def modes_in(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


@posix
def test_the_record_is_its_owners_alone(tmp_path: Path) -> None:
    """Nobody else on the machine reads the chats: not the file, nor what SQLite and we put beside it."""

    async def scene() -> dict[str, int]:
        ledger = SqliteLedger(tmp_path / "qiwo.db")
        await ledger.append(Accepted(item("a")))
        modes = modes_in(tmp_path)
        await ledger.close()
        return modes

    mask = os.umask(0)
    try:
        modes = asyncio.run(scene())
    finally:
        os.umask(mask)
    assert modes == dict.fromkeys(("qiwo.db", "qiwo.db-wal", "qiwo.db-shm", "qiwo.db.lock"), 0o600)


def test_a_commit_survives_a_power_cut(tmp_path: Path) -> None:
    """Write-ahead log, an fsync a commit, references checked: NORMAL could lose an intent, and send twice."""
    with closing(open_database(tmp_path / "qiwo.db")) as db:
        settings = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
        assert settings == ["wal", 2]
        assert db.execute("PRAGMA foreign_keys").fetchone() == (1,)


def test_batches_that_wait_together_share_a_commit(tmp_path: Path) -> None:
    """A commit costs an fsync: a hundred batches in one breath must not cost a hundred of them."""

    async def scene() -> int:
        ledger = SqliteLedger(tmp_path / "qiwo.db")
        await ledger.append(Accepted(item("first")))
        before = commits_in(tmp_path / "qiwo.db-wal")
        await asyncio.gather(*(ledger.append(Accepted(item(f"k{number}"))) for number in range(100)))
        after = commits_in(tmp_path / "qiwo.db-wal")
        await ledger.close()
        return after - before

    assert 1 <= asyncio.run(scene()) <= 20


def commits_in(log: Path) -> int:
    """Frames of the write-ahead log that end a transaction: those whose header tells the size of the database."""
    data = log.read_bytes()
    frame = 24 + int.from_bytes(data[8:12], "big")
    return sum(data[start + 4 : start + 8] != bytes(4) for start in range(32, len(data), frame))


# -- other processes -----------------------------------------------------------------------------------------


def test_a_second_bot_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    """Before it can close the turns that the first one runs; when the first has ended, it may."""
    path = tmp_path / "qiwo.db"

    async def scene() -> str:
        ledger = SqliteLedger(path)
        before = open_files()
        with pytest.raises(LedgerFault) as caught:
            SqliteLedger(path)
        assert open_files() == before
        await ledger.append(Accepted(item("the first goes on")))
        await ledger.close()
        return str(caught.value)

    sentence = asyncio.run(scene())
    assert sentence.startswith(f"the data folder {tmp_path} is in use (")
    assert sentence.endswith("stop the other bot on it, or set QIWO_DATA_DIR to a folder of this bot's own")
    opens(path)


@posix
def test_a_bot_that_was_killed_leaves_no_lock(tmp_path: Path) -> None:
    """The system takes the lock back: nobody has to remove a file by hand."""
    path = tmp_path / "qiwo.db"
    code = """
async def scene():
    ledger = SqliteLedger(Path(argv[0]))
    print("open", flush=True)
    sys.stdin.read()
asyncio.run(scene())
"""
    with child(code, path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        assert "is in use" in fault_of_opening(path)
        process.kill()
    opens(path)


def test_a_locked_database(tmp_path: Path) -> None:
    """A database shell with an open transaction: said in one sentence; afterwards it opens, with all that was in it."""
    path = tmp_path / "qiwo.db"
    opens(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as shell:
        shell.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerFault) as caught:
            open_database(path, patience=0)
        shell.execute("ROLLBACK")
    assert str(caught.value).endswith("database is locked; another program holds the database: close it")
    with closing(open_database(path)) as db:
        assert db.execute("SELECT count(*) FROM turns").fetchone() == (1,)


# -- a full disk ---------------------------------------------------------------------------------------------


def test_a_full_disk_is_said_and_goes_by(caplog: pytest.LogCaptureFixture) -> None:
    """What does not fit fails as a whole; what stood there stands; with room again, writing goes on."""

    async def scene() -> None:
        ledger = MemoryLedger()
        record_turn(ledger, "before")
        pages = ledger.db.execute("PRAGMA page_count").fetchone()[0]
        ledger.db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(LedgerFault, match="database or disk is full; the disk is full: free some space"):
            await ledger.append(Accepted(item("small")), *(Accepted(item(f"k{n}" * 500)) for n in range(50)))
        assert [one.key for one in await ledger.backlog()] == []
        ledger.db.execute(f"PRAGMA max_page_count = {pages + 1000}")
        record_turn(ledger, "after")
        assert len((await ledger.transcript(item("").chat, 10)).turns) == 2
        await ledger.close()

    asyncio.run(scene())
    assert len(caplog.records) == 1


def test_a_fault_in_the_middle_undoes_the_whole_group() -> None:
    """Whatever SQLite leaves open then is rolled back, and the next group begins afresh."""

    def write(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO timers VALUES ('k', 1.0, 'c', 'message', '')")

    def fail(db: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with closing(open_database(":memory:")) as db:
        faults = run_group(db, [write, fail, write])
        sentence = "the record: disk I/O error; the disk refuses: check its space and its health"
        assert [str(fault) for fault in faults] == [sentence] * 3
        assert run(db, lambda db: db.execute("SELECT count(*) FROM timers").fetchone()) == (0,)


@posix
def test_a_disk_that_refuses_is_said_and_goes_by(tmp_path: Path) -> None:
    """The same in the file: each batch that waits gets the fault, and the thread lives on."""
    code = """
import resource
from kernel.ports import Accepted
async def scene():
    path = Path(argv[0])
    ledger = SqliteLedger(path)
    await ledger.append(Accepted(item("before")))
    size = Path(f"{path}-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1000, resource.RLIM_INFINITY))
    batches = [ledger.append(Accepted(item(key))) for key in ("lost 1", "lost 2")]
    for fault in await asyncio.gather(*batches, return_exceptions=True):
        print(type(fault).__name__, fault)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await ledger.append(Accepted(item("after")))
    print([one.key for one in await ledger.backlog()])
    await ledger.close()
asyncio.run(scene())
"""
    process = child(code, tmp_path / "qiwo.db")
    out, err = process.communicate(timeout=60)
    sentence = "the record: disk I/O error; the disk refuses: check its space and its health"
    assert out.splitlines() == [f"LedgerFault {sentence}"] * 2 + ["['before', 'after']"]
    assert err.splitlines() == [sentence] * 2  # logging's last resort: the log says it too


# -- a process that ends in the middle -----------------------------------------------------------------------

EFFECTS = """
from kernel.ports import Accepted, CallSettled, CallStarted, StepOpened, TurnClosed, TurnOpened
from kernel.conversation import Ending, Ok
async def scene():
    ledger = SqliteLedger(Path(argv[0]))
    number = len(await ledger.seen(10**6))
    while True:
        ident, key = f"t{number}", f"k{number}"
        calls = [exchange(f"{ident}c{place}") for place in range(2)]
        ledger.append(Accepted(item(key)))
        ledger.append(TurnOpened(turn(ident, key), (key,)))
        ledger.append(StepOpened(ident, step(0, *calls)))
        for call in calls:
            await ledger.append(CallStarted(call.call.id, "", 1.0))
            print(call.call.id, flush=True)  # the effect
            call.settle(Ok(call.call.id))
            ledger.append(CallSettled(call, 2.0))
        ledger.append(TurnClosed(turn(ident).close(Ending.ANSWERED), 3.0))
        number += 1
asyncio.run(scene())
"""


@posix
def test_killed_at_any_moment_the_record_tells_the_truth(tmp_path: Path) -> None:
    """Each effect has its intent on disk; each result is there once; a call without one is open, in an open turn."""
    path = tmp_path / "qiwo.db"
    effects: list[str] = []
    for lines in (1, 2, 7, 40):
        with child(EFFECTS, path) as process:
            assert process.stdout is not None
            effects += [process.stdout.readline().strip() for _ in range(lines)]
            process.send_signal(signal.SIGKILL)
            effects += process.stdout.read().split()
    with closing(open_database(path)) as db:
        rows = db.execute("SELECT id, started, outcome, result, settled FROM calls").fetchall()
        assert db.execute("SELECT count(*) FROM turns WHERE ending IS NULL").fetchone()[0] <= 4
    assert len(effects) == len(set(effects)) >= 50
    assert set(effects) <= {ident for ident, started, *_ in rows if started is not None}
    for ident, started, outcome, result, settled in rows:
        match outcome:
            case "ok":
                assert ident in effects
                assert result == ident
            case _:
                assert (outcome, settled) == ("interrupted", None)
                assert started is not None or ident not in effects


@posix
def test_a_loop_that_ends_without_closing_loses_nothing_that_was_queued(tmp_path: Path) -> None:
    """Nobody is left to be told, but the thread goes on writing what it was handed, without a word."""
    path = tmp_path / "qiwo.db"
    opens(path)
    code = """
import sqlite3, threading
from kernel.ports import Accepted
path = argv[0]
shell = sqlite3.connect(path, isolation_level=None)
async def scene():
    ledger = SqliteLedger(Path(path))
    shell.execute("BEGIN IMMEDIATE")  # the thread has to wait until the loop is gone
    ledger.append(Accepted(item("a")))
    ledger._send()
    return ledger
ledger = asyncio.run(scene())
shell.execute("ROLLBACK")
ledger._jobs.put(None)
[thread] = [one for one in threading.enumerate() if one.name == "qiwo-ledger"]
thread.join(30)
print(shell.execute("SELECT key FROM inbox WHERE taken IS NULL").fetchall())
shell.close()
"""
    assert output_of(child(code, path)) == "[('a',)]\n"
