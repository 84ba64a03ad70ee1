"""Ours against two floor programs, driven by the same fake QQ and fake model in one run: `bench/run.py [--quick]`.

Prints a Markdown table: medians over interleaved rounds, and ratios. Ours writes its record to a temporary folder on
the disk, with an fsync before each reply; the floors keep nothing.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from bench.driver import Driver

from kernel.testkit.app import free_port

CONTESTANTS = {"raw": "bench/floor_raw.py", "nonebot": "bench/floor_nonebot.py", "qiwo": "bot.py"}


@dataclass(frozen=True, slots=True)
class Size:
    """How much is asked of each contestant in a round."""

    rounds: int
    alone: int
    at_50: int
    at_500: int
    history: int


FULL, QUICK = Size(3, 200, 1000, 2000, 510), Size(1, 60, 200, 500, 110)


@contextmanager
def process(
    arguments: list[str], port: int, env: Mapping[str, str], folder: Path
) -> Iterator[tuple[psutil.Process, float]]:
    """A child that answers /healthz, and the seconds until it did. It is ended with the block."""
    begun = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **env},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while True:
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1):
                break
            if child.poll() is not None or time.perf_counter() - begun > 30:
                raise RuntimeError(f"{arguments} did not start")
            time.sleep(0.01)
        yield psutil.Process(child.pid), time.perf_counter() - begun
    finally:
        child.terminate()
        child.wait(10)


def cpu(one: psutil.Process) -> float:
    times = one.cpu_times()
    used: float = times.user + times.system
    return used


async def crowd(driver: Driver, chats: int, replies: int, first: int) -> list[float]:
    """Each chat asks again as soon as it is answered."""

    async def chat(user: int) -> list[float]:
        return [await driver.ask(user) for _ in range(replies // chats)]

    return [seconds for part in await asyncio.gather(*(chat(first + n) for n in range(chats))) for seconds in part]


async def measure(one: psutil.Process, url: str, size: Size, *, history: bool) -> dict[str, float]:
    """All the figures of one started contestant; times in seconds."""
    figures: dict[str, float] = {"idle MB": one.memory_info().rss / 1e6}
    async with Driver(url) as driver:
        for user in range(20):
            await driver.ask(100 + user)  # warm up
        before = cpu(one)
        alone = [await driver.ask(100 + n % 20) for n in range(size.alone)]
        figures["ms a reply, p50"] = statistics.median(alone) * 1e3
        figures["ms a reply, p99"] = statistics.quantiles(alone, n=100)[98] * 1e3
        figures["CPU s per 1,000, one at a time"] = (cpu(one) - before) / size.alone * 1e3
        for chats, replies in ((50, size.at_50), (500, size.at_500)):
            before, begun = cpu(one), time.perf_counter()
            count = len(await crowd(driver, chats, replies, 1000 * chats))
            figures[f"replies/s at {chats} chats"] = count / (time.perf_counter() - begun)
            figures[f"CPU s per 1,000 at {chats} chats"] = (cpu(one) - before) / count * 1e3
        if history:
            figures |= await grow(driver, one, size.history)
    figures["MB after the load"] = one.memory_info().rss / 1e6
    return figures


async def grow(driver: Driver, one: psutil.Process, turns: int) -> dict[str, float]:
    """One chat that goes on and on: what its tenth, hundredth and five-hundredth turn cost."""
    figures, seconds, used = {}, [], []
    for _ in range(turns):
        before = cpu(one)
        seconds.append(await driver.ask(77))
        used.append(cpu(one) - before)
    for turn in (10, 100, 500):
        around = slice(max(0, turn - 10), turn + 10)
        if len(seconds[around]) == 20:
            figures[f"ms at turn {turn} of one chat"] = statistics.median(seconds[around]) * 1e3
            figures[f"CPU ms at turn {turn} of one chat"] = statistics.mean(used[around]) * 1e3
    return figures


def round_of(name: str, model: str, size: Size) -> dict[str, float]:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="qiwo-bench-") as folder:
        ours = {
            "QIWO_MODEL_URL": model,
            "QIWO_MODEL": "m",
            "QIWO_DATA_DIR": f"{folder}/data",
            "QIWO_CONTEXT_TOKENS": "8000",
            "QIWO_MERGE_WINDOW": "0",  # the floors do not wait for more words either
        }
        env = {"PORT": str(port), "HOST": "127.0.0.1", "MODEL_URL": model, **(ours if name == "qiwo" else {})}
        with process([str(ROOT / CONTESTANTS[name])], port, env, Path(folder)) as (one, start):
            url = f"ws://127.0.0.1:{port}/onebot/v11/ws"
            return {"cold start, s": start, **asyncio.run(measure(one, url, size, history=name == "qiwo"))}


def table(figures: Mapping[str, Mapping[str, float]]) -> str:
    """Medians, and what ours is of the others."""
    lines = ["| | raw | nonebot | qiwo | qiwo / raw | qiwo / nonebot |", "|---|---|---|---|---|---|"]
    for what, ours in figures["qiwo"].items():
        raw, bare = figures["raw"].get(what), figures["nonebot"].get(what)
        cells = [f"{value:.2f}" if value is not None else "" for value in (raw, bare, ours)]
        cells += [f"{ours / value:.2f}" if value else "" for value in (raw, bare)]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small round")
    size = QUICK if parser.parse_args().quick else FULL
    port = free_port()
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
    server = subprocess.Popen(
        [sys.executable, "-m", "kernel.testkit.server", "--port", str(port)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.DEVNULL,
    )
    try:
        time.sleep(1)
        for _ in range(size.rounds):
            for name, done in rounds.items():
                done.append(round_of(name, f"http://127.0.0.1:{port}/v1", size))
    finally:
        server.terminate()
        server.wait(10)
    medians = {
        name: {what: statistics.median(one[what] for one in done) for what in done[0]} for name, done in rounds.items()
    }
    print(table(medians))


if __name__ == "__main__":
    main()
