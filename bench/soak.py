"""Pull the plug, again and again: `uv run bench/soak.py [--kills 40] [--chats 24] [--seed 1]`.

The real bot under load, with tools that have effects, is killed with SIGKILL at random moments (one time in five it is
asked to leave instead). At the end the record, the effects and what reached QQ are held against one another. Prints
the figures and every fault, and exits with 1 if there is one.
"""

import argparse
import asyncio
import itertools
import logging
import random
import re
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from kernel.testkit import BotProcess, FakeModel, FakeQQ, Say

GROUP = 50001
LAST = 99999
"""Numbers the question of each chat that is asked when the plug is not pulled any more."""

DROPPED = "条没有处理"
QUESTION = re.compile(r"question (\d+-\d+)")


def answer_for(request: Mapping[str, Any]) -> Say:
    """What the model says: an effect with a look, a message with two more, the answer. It forgets nothing it did."""
    messages = request["messages"]
    last = max(index for index, message in enumerate(messages) if message["role"] == "user")
    found = QUESTION.findall(messages[last]["content"])
    word = found[-1] if found else "none"
    done = sum(message["role"] == "assistant" for message in messages[last:])
    match done:
        case 0:
            return Say("", (("spend", {"word": f"{word}a"}), ("look", {"word": word})))
        case 1:
            progress = ("output_send__qq", {"text": f"progress {word}"})
            return Say("", (("put", {"word": f"{word}b"}), progress, ("spend", {"word": f"{word}c"})))
        case _:
            return Say(f"answer {word}")


@dataclass(slots=True)
class Tale:
    """What the soak saw from outside. `asked` are the questions that went out on a socket, in order, by chat."""

    kills: int = 0
    leaves: int = 0
    asked: dict[int, list[str]] = field(default_factory=dict)
    sent: list[tuple[str, str]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    effects: list[tuple[str, str, str]] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)


class Soak:
    """One run: `await run()`, then `faults()` and `figures()`."""

    def __init__(self, folder: Path, *, kills: int, chats: int, seed: int) -> None:
        self.tale = Tale()
        self._folder = folder
        self._kills = kills
        self._chats = chats
        self._random = random.Random(seed)
        self._over = False

    async def run(self) -> None:
        effects = self._folder / "effects"
        effects.touch()
        async with FakeModel(record=False) as model:
            model.on(answer_for)
            env = {
                "QIWO_MODEL_URL": model.url,
                "QIWO_MODEL": "m",
                "QIWO_MERGE_WINDOW": "0",
                "QIWO_CONTEXT_TOKENS": "4000",
                "QIWO_PLUGIN_DIRS": str(ROOT / "bench" / "soak_plugins"),
                "SOAK_EFFECTS": str(effects),
                "LOG_LEVEL": "WARNING",
            }
            async with BotProcess(ROOT, env=env, data=self._folder / "data") as bot:
                qq = FakeQQ(bot.onebot)
                qq.world.add_group(GROUP)
                await qq.connect()
                chats = [asyncio.create_task(self._chat(qq, number)) for number in range(self._chats)]
                await self._pull_the_plug(bot, qq)
                self._over = True
                await asyncio.gather(*chats)
                await self._quiet()
                await asyncio.gather(*(self._last(qq, number) for number in range(self._chats)))
                await self._quiet()
                await asyncio.to_thread(bot.stop)
                with suppress(ConnectionClosed):
                    await qq.close()
            self.tale.sent = [(sent.chat, sent.text) for sent in qq.sent]
            self.tale.refused = list(model.refused)
            self.tale.effects = [tuple(line.split()) for line in effects.read_text().splitlines()]  # type: ignore[misc]

    async def _pull_the_plug(self, bot: BotProcess, qq: FakeQQ) -> None:
        for number in range(self._kills):
            await asyncio.sleep(self._random.uniform(0.05, 1.5))
            if number % 5 == 4:
                bot.terminate()
                self.tale.leaves += 1
            else:
                bot.kill()
                self.tale.kills += 1
            await asyncio.to_thread(bot.wait)
            begun = time.monotonic()
            await asyncio.to_thread(bot.start)
            self.tale.starts.append(time.monotonic() - begun)
            await qq.connect()

    async def _chat(self, qq: FakeQQ, number: int) -> None:
        """Someone who asks three things at a time until the soak is over."""
        asked = self.tale.asked[number] = []
        for question in itertools.count(1):
            if self._over:
                return
            word = f"{number}-{question}"
            if not await self._ask(qq, number, word):
                await asyncio.sleep(0.05)  # the bot is down: people cannot speak to it
                continue
            asked.append(word)
            if question % 3 == 0:
                await self._answered(qq, word, 4.0)  # or never: what was lost with a socket is not answered

    async def _answered(self, qq: FakeQQ, word: str, seconds: float) -> None:
        with suppress(TimeoutError):
            await qq.sent.take(1, lambda sent: sent.text == f"answer {word}", seconds)

    async def _last(self, qq: FakeQQ, number: int) -> None:
        """One more question when all is quiet: it must be answered."""
        word = f"{number}-{LAST}"
        self.tale.asked[number].append(word)
        await self._ask(qq, number, word)
        await self._answered(qq, word, 30.0)

    async def _ask(self, qq: FakeQQ, number: int, word: str) -> bool:
        """Whether the socket took it."""
        user = 30001 + number
        try:
            if self._place(number) == f"group:{GROUP}":
                await qq.group_says(GROUP, user, f"question {word}")
            else:
                await qq.private_says(user, f"question {word}")
        except (ConnectionClosed, AssertionError):
            return False
        return True

    def _place(self, number: int) -> str:
        return f"group:{GROUP}" if number % 4 == 3 else f"private:{30001 + number}"

    async def _quiet(self) -> None:
        """Until no turn is open and nothing waits; another process writes that, so it has to be looked for."""
        for _ in range(600):
            if not (self._count("turns WHERE ending IS NULL") or self._count("inbox WHERE taken IS NULL")):
                return
            await asyncio.sleep(0.1)
        raise TimeoutError("the bot does not come to rest")

    # -- the reckoning ---------------------------------------------------------------------------------------

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"file:{self._folder / 'data' / 'qiwo.db'}?mode=ro", uri=True)) as db:
            return db.execute(sql).fetchall()

    def _count(self, of: str) -> int:
        [(count,)] = self._rows(f"SELECT count(*) FROM {of}")
        return int(count)

    def faults(self) -> list[str]:
        """Everything that must not be."""
        return [*self._record_faults(), *self._effect_faults(), *self._chat_faults()]

    def _record_faults(self) -> Iterator[str]:
        if self.tale.refused:
            yield f"the model refused {len(self.tale.refused)} requests: {self.tale.refused[0]}"
        for what in (
            "turns WHERE ending IS NULL",
            "inbox WHERE taken IS NULL",
            "calls WHERE settled IS NULL",
            "calls WHERE outcome = 'not_started' AND started IS NOT NULL",
            "(SELECT turn FROM calls WHERE step = -1 GROUP BY turn HAVING count(*) > 1)",
        ):
            if count := self._count(what):
                yield f"{count} {what}"
        if self._rows("PRAGMA integrity_check") != [("ok",)] or self._rows("PRAGMA foreign_key_check"):
            yield "the database is not whole"

    def _effect_faults(self) -> Iterator[str]:
        once = [effect for effect in self.tale.effects if effect[0] == "spend"]
        for part, name in ((1, "call"), (2, "word")):
            for value, times in Counter(effect[part] for effect in once).items():
                if times > 1:
                    yield f"the effect of {name} {value} happened {times} times"
        calls = {call for (call,) in self._rows("SELECT id FROM calls WHERE started IS NOT NULL")}
        for _, call, word in self.tale.effects:
            if call not in calls:
                yield f"the effect {word} has no started call {call} on record"
        had = {call for _, call, _ in self.tale.effects}
        for (call,) in self._rows("SELECT id FROM calls WHERE outcome = 'ok' AND name IN ('spend', 'put')"):
            if call not in had:
                yield f"call {call} is on record as done, and had no effect"

    def _chat_faults(self) -> Iterator[str]:
        for (chat, text), times in Counter(self.tale.sent).items():
            if times > 1 and text.startswith(("answer", "progress")):
                yield f"{text!r} was sent to {chat} {times} times"
        taken = self._questions("SELECT inbounds FROM turns")
        answered = self._questions("SELECT inbounds FROM turns WHERE ending IN ('answered', 'interrupted', 'dropped')")
        texts = [text for _, text in self.tale.sent]
        if self._count("turns WHERE ending = 'dropped'") and not any(DROPPED in text for text in texts):
            yield "messages were dropped, and nobody was told"
        for number, asked in self.tale.asked.items():
            got = [text.split()[1] for text in texts if text.startswith(f"answer {number}-")]
            if got != [word for word in asked if word in set(got)]:
                yield f"chat {number} was answered out of order: {got}"
            for word in asked:
                if word in taken and word not in answered:
                    yield f"question {word} was taken in, and never answered"
            if not asked or asked[-1] not in got:
                yield f"chat {number} does not go on: its last question has no answer"

    def _questions(self, sql: str) -> set[str]:
        return {word for (inbounds,) in self._rows(sql) for word in QUESTION.findall(inbounds)}

    def figures(self) -> dict[str, object]:
        """What there was to judge."""
        asked = sum(map(len, self.tale.asked.values()))
        answers = sum(text.startswith("answer") for _, text in self.tale.sent)
        return {
            "kills with SIGKILL": self.tale.kills,
            "ends with SIGTERM": self.tale.leaves,
            "questions on the wire": asked,
            "of them taken in": len(self._questions("SELECT inbounds FROM turns")),
            "answers that arrived": answers,
            "turns by ending": dict(self._rows("SELECT ending, count(*) FROM turns GROUP BY 1")),
            "turns that went on after a restart": self._count("turns WHERE resumed > 0"),
            "calls": self._count("calls"),
            "calls by outcome": dict(self._rows("SELECT outcome, count(*) FROM calls GROUP BY 1")),
            "effects that must not repeat": sum(kind == "spend" for kind, _, _ in self.tale.effects),
            "start after a kill, s": f"median {sorted(self.tale.starts)[len(self.tale.starts) // 2]:.2f}, "
            f"longest {max(self.tale.starts):.2f}",
        }


def main(arguments: Sequence[str]) -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--chats", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of every write to a socket that a kill has closed
    with tempfile.TemporaryDirectory(prefix="qiwo-soak-") as folder:
        soak = Soak(Path(folder), kills=options.kills, chats=options.chats, seed=options.seed)
        begun = time.monotonic()
        asyncio.run(soak.run())
        faults = soak.faults()
        for name, figure in soak.figures().items():
            print(f"{name}: {figure}")
        print(f"seconds: {time.monotonic() - begun:.0f}")
    print(*faults, sep="\n")
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
