"""The real app on a stage: bot.py as a process, the strict model over HTTP, a fake QQ over a real WebSocket."""

import asyncio
import itertools
import json
import sqlite3
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kernel.testkit import BotProcess, FakeModel, FakeQQ

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = ROOT / "tests" / "data" / "plugins"


@dataclass(frozen=True, slots=True)
class Row:
    """One call as the record holds it."""

    name: str
    outcome: str
    result: str
    started: float | None
    settled: float | None


class Stage:
    """`run` plays one scene; the actors live on between the scenes."""

    def __init__(self, runner: asyncio.Runner, bot: BotProcess, model: FakeModel, qq: FakeQQ) -> None:
        self._runner = runner
        self.bot = bot
        self.model = model
        self.qq = qq
        self._users = itertools.count(30001)

    def run(self, scene: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(scene)

    def newcomer(self) -> int:
        """A user whom nobody has seen: his private chat has no history, and his crashes are his own."""
        return next(self._users)

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Look into the record from outside, as another process would."""
        with closing(sqlite3.connect(f"file:{self.bot.data / 'qiwo.db'}?mode=ro", uri=True)) as db:
            return db.execute(sql, values).fetchall()

    def calls(self, user: int) -> list[Row]:
        """The tool calls of a user's turns, in order; the final replies are left out."""
        rows = self.query(
            "SELECT c.name, c.outcome, c.result, c.started, c.settled FROM calls c JOIN turns t ON t.id = c.turn"
            " WHERE json_extract(t.source, '$.user') = ? AND c.step >= 0 ORDER BY t.seq, c.step, c.place",
            str(user),
        )
        return [Row(*row) for row in rows]

    async def ended(self, user: int, turns: int) -> list[str]:
        """The endings of the user's turns, once so many are on record: the last row is written behind the reply."""
        async with asyncio.timeout(10):
            while len(found := [ending for ending in self.endings(user) if ending]) < turns:
                await asyncio.sleep(0.01)
        return found

    def endings(self, user: int) -> list[str]:
        rows = self.query("SELECT ending FROM turns WHERE json_extract(source, '$.user') = ? ORDER BY seq", str(user))
        return [ending for (ending,) in rows]


@contextmanager
def stage(
    *, env: Mapping[str, str] | None = None, plugins: Path | None = PLUGINS, data: Path | None = None
) -> Iterator[Stage]:
    """Everything started and connected. At the end the model must have refused nothing."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def open_all() -> Stage:
            model = await stack.enter_async_context(FakeModel())
            settings = {
                "QIWO_MODEL_URL": model.url,
                "QIWO_MODEL": "fake",
                "QIWO_MODEL_KEY": "sk-secret",
                "QIWO_MERGE_WINDOW": "0",
                **(env or {}),
            }
            if plugins is not None:
                settings["QIWO_PLUGIN_DIRS"] = str(plugins)
            bot = await stack.enter_async_context(BotProcess(ROOT, env=settings, data=data))
            qq = await stack.enter_async_context(FakeQQ(bot.onebot))
            return Stage(runner, bot, model, qq)

        one = runner.run(open_all())
        try:
            yield one
            assert one.model.refused == []
        finally:
            runner.run(stack.aclose())


def results_in(request: Mapping[str, Any]) -> list[str]:
    """What the model is told of the calls of the last turn, in order."""
    messages = request["messages"]
    last = max(index for index, message in enumerate(messages) if message["role"] == "user")
    return [message["content"] for message in messages[last:] if message["role"] == "tool"]


def tools_in(request: Mapping[str, Any]) -> set[str]:
    return {tool["function"]["name"] for tool in request.get("tools", [])}


def pretty(request: Mapping[str, Any]) -> str:
    return json.dumps(request, ensure_ascii=False, indent=1)
