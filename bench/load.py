"""Everybody at once, then one who floods: `uv run bench/load.py [--chats 500] [--rounds 3]`.

The real bot with its default settings and a model that takes a second. In each round every chat asks five things
without waiting for an answer. Then people talk as usual while one member of a group sends 200 messages in 5 s. Prints
the figures and every fault, and exits with 1 if there is one.
"""

import argparse
import asyncio
import itertools
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from kernel.testkit import BotProcess, FakeModel, FakeQQ, Say, Sent

QUESTION = re.compile(r"question (\S+)")
QUESTIONS = 5
"""Asked in each chat and round, within `HURRY` seconds."""

HURRY = 4.0

FLOOD = 200
FLOOD_SECONDS = 5.0
FLOODER, FLOODED = 80001, 50001
BYSTANDERS = 20
"""Private chats and other groups, half of each, beside the flooded group."""

PATIENCE = 120.0
GROWTH = 1.25
"""What the memory after the last round may be of that after the first: the rounds are all alike."""


def answer_for(request: Mapping[str, Any]) -> Say:
    """Name every question that was not answered yet."""
    asked = itertools.takewhile(lambda message: message["role"] != "assistant", reversed(request["messages"]))
    words = [QUESTION.findall(str(message["content"])) for message in asked if message["role"] == "user"]
    return Say(" ".join(("answer", *(word for part in reversed(words) for word in part))))


@dataclass(slots=True)
class Asked:
    """The questions of one person in one chat, in order, each with when it was asked."""

    user: int
    group: int | None
    words: dict[str, float] = field(default_factory=dict)

    @property
    def chat(self) -> str:
        return f"private:{self.user}" if self.group is None else f"group:{self.group}"


class Load:
    """One run: `await run()`, then `faults()` and `figures()`."""

    def __init__(self, folder: Path, *, chats: int, rounds: int, seed: int = 1) -> None:
        self._data = folder / "data"
        self._random = random.Random(seed)
        self._rounds = rounds
        self._crowd = [Asked(100_000 + number, None) for number in range(chats)]
        self._bystanders = [
            Asked(90_000 + number, None if number % 2 else 60_000 + number) for number in range(BYSTANDERS)
        ]
        self._neighbour = Asked(80002, FLOODED)
        self._flooder = Asked(FLOODER, FLOODED)
        self._seconds: list[float] = []
        self._memory: list[tuple[str, float, float]] = []
        self._sent: tuple[Sent, ...] = ()
        self._refused: list[str] = []

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            model = await stack.enter_async_context(FakeModel(delay=1.0, record=False))
            model.on(answer_for)
            env = {"QIWO_MODEL_URL": model.url, "QIWO_MODEL": "m", "LOG_LEVEL": "WARNING"}
            bot = await stack.enter_async_context(BotProcess(ROOT, env=env, data=self._data))
            qq = await stack.enter_async_context(FakeQQ(bot.onebot))
            for someone in (*self._crowd, *self._everybody()):
                self._introduce(qq, someone)
            self._weigh(bot, "idle")
            for number in range(self._rounds):
                await self._all_at_once(qq, number)
                self._weigh(bot, f"after round {number + 1}")
            await self._as_usual(qq, "before", self._bystanders)
            await self._as_usual(qq, "during", [*self._bystanders, self._neighbour], self._flood)
            self._weigh(bot, "after the flood")
            self._sent = tuple(qq.sent)
            self._refused = list(model.refused)

    def _everybody(self) -> tuple[Asked, ...]:
        return (*self._bystanders, self._neighbour, self._flooder)

    def _introduce(self, qq: FakeQQ, someone: Asked) -> None:
        if someone.group is None:
            qq.world.add_friend(someone.user)
        elif someone.group not in qq.world.groups:
            qq.world.add_group(someone.group)

    def _weigh(self, bot: BotProcess, when: str) -> None:
        """Resident memory now and at its highest so far, in MB."""
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{bot.pid}/status").read_text().splitlines())
        now, most = (int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))
        self._memory.append((when, now, most))

    # -- scenes ----------------------------------------------------------------------------------------------

    async def _all_at_once(self, qq: FakeQQ, number: int) -> None:
        begun = time.monotonic()

        async def chat(one: Asked) -> None:
            moments = sorted(self._random.uniform(0.0, HURRY) for _ in range(QUESTIONS))
            for place, moment in enumerate(moments):
                await asyncio.sleep(begun + moment - time.monotonic())
                await self._ask(qq, one, f"{one.user}-{number}-{place}")

        await asyncio.gather(*(chat(one) for one in self._crowd))
        await self._answered(qq, self._crowd)
        self._seconds.append(time.monotonic() - begun)

    async def _as_usual(
        self,
        qq: FakeQQ,
        when: str,
        people: Sequence[Asked],
        meanwhile: Callable[[FakeQQ], Awaitable[None]] | None = None,
    ) -> None:
        """Everyone asks once a second, each at a moment of his own."""

        async def person(one: Asked) -> None:
            await asyncio.sleep(self._random.random())
            for place in range(int(FLOOD_SECONDS)):
                await self._ask(qq, one, f"{one.user}-{when}-{place}")
                await asyncio.sleep(1.0)

        await asyncio.gather(*map(person, people), *([meanwhile(qq)] if meanwhile else []))
        await self._answered(qq, people)

    async def _flood(self, qq: FakeQQ) -> None:
        for number in range(FLOOD):
            await self._ask(qq, self._flooder, f"flood-{number}")
            await asyncio.sleep(FLOOD_SECONDS / FLOOD)

    async def _ask(self, qq: FakeQQ, one: Asked, word: str) -> None:
        one.words[word] = time.monotonic()
        if one.group is None:
            await qq.private_says(one.user, f"question {word}")
        else:
            await qq.group_says(one.group, one.user, f"question {word}")

    async def _answered(self, qq: FakeQQ, people: Sequence[Asked]) -> None:
        """Until everything they asked is answered, or will not be."""
        missing = {word for one in people for word in one.words}
        seen, end = 0, time.monotonic() + PATIENCE
        while missing and time.monotonic() < end:
            await asyncio.sleep(0.05)
            fresh = qq.sent[seen:]
            seen += len(fresh)
            missing -= {word for sent in fresh for word in sent.text.split()[1:]}

    # -- the reckoning ---------------------------------------------------------------------------------------

    def _answers(self, one: Asked) -> list[tuple[str, float]]:
        """The words of his that were answered in his chat, in order, each with when."""
        said = [sent for sent in self._sent if sent.chat == one.chat and sent.text.startswith("answer")]
        return [(word, sent.at) for sent in said for word in sent.text.split()[1:] if word in one.words]

    def faults(self) -> list[str]:
        """Everything that must not be."""
        return [*self._crowd_faults(), *self._flood_faults()]

    def _crowd_faults(self) -> Iterator[str]:
        if self._refused:
            yield f"the model refused {len(self._refused)} requests: {self._refused[0]}"
        by_chat = self._by_chat()
        for one in (*self._crowd, *self._bystanders, self._neighbour):
            answered = [word for word in by_chat.get(one.chat, ()) if word in one.words]
            if lost := [word for word in one.words if word not in answered]:
                yield f"{one.user} in {one.chat} has no answer to {lost}"
            elif answered != list(one.words):
                yield f"{one.user} in {one.chat} was answered out of order, or twice: {answered}"
        first, last = (self._memory[place][1] for place in (1, self._rounds))
        if last > first * GROWTH:
            yield f"the memory grew from {first:.0f} MB after the first round to {last:.0f} MB after the last"

    def _by_chat(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for sent in self._sent:
            if sent.text.startswith("answer"):
                found.setdefault(sent.chat, []).extend(sent.text.split()[1:])
        return found

    def _flood_faults(self) -> Iterator[str]:
        for sent in self._sent:
            if not sent.text.startswith("answer") and sent.chat != self._flooder.chat:
                yield f"{sent.chat} was told {sent.text!r}"
        if len(self._answers(self._flooder)) == FLOOD:
            yield "everything the flooder said was answered: nothing was dropped"
        if not any("条没有处理" in sent.text for sent in self._sent if sent.chat == self._flooder.chat):
            yield "the flooder was not told that messages of his were dropped"

    def _waits(self, people: Sequence[Asked], when: str = "") -> list[float]:
        return [at - one.words[word] for one in people for word, at in self._answers(one) if when in word]

    def figures(self) -> dict[str, object]:
        """What there was to judge."""
        turns = sum(sent.text.startswith("answer") for sent in self._sent if sent.chat in self._chats())
        return {
            "chats at once": len(self._crowd),
            "questions": sum(len(one.words) for one in self._crowd),
            "answers (quick questions are merged)": turns,
            "seconds a round": ", ".join(f"{seconds:.1f}" for seconds in self._seconds),
            "wait for an answer": spread(self._waits(self._crowd)),
            "bystanders before the flood": spread(self._waits(self._bystanders, "before")),
            "bystanders during the flood": spread(self._waits(self._bystanders, "during")),
            "a neighbour in the flooded group": spread(self._waits([self._neighbour])),
            "of the flood answered": f"{len(self._answers(self._flooder))} of {FLOOD}",
            "messages to the flooded group": sum(sent.chat == self._flooder.chat for sent in self._sent),
            **{f"MB {when}": f"{now:.0f} (at most {most:.0f})" for when, now, most in self._memory},
        }

    def _chats(self) -> set[str]:
        return {one.chat for one in self._crowd}


def spread(seconds: Sequence[float]) -> str:
    """Median, 99th percentile and longest."""
    ordered = sorted(seconds)
    if not ordered:
        return "none"
    late = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return f"median {statistics.median(ordered):.2f} s, p99 {late:.2f} s, longest {ordered[-1]:.2f} s"


def main(arguments: Sequence[str]) -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chats", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="qiwo-load-") as folder:
        load = Load(Path(folder), chats=options.chats, rounds=options.rounds)
        asyncio.run(load.run())
    for name, figure in load.figures().items():
        print(f"{name}: {figure}")
    faults = load.faults()
    print(*faults, sep="\n")
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
