"""A plugin for tests: effects that can be counted from outside, and results that are no text."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from kernel import Media, Plugin

plugin = Plugin("effects")


@plugin.tool(risk="write")
async def note(word: str, seconds: float = 0.0) -> str:
    """Write a word down, and then take long.

    Args:
        word: What is written.
        seconds: How long.
    """
    with (Path(os.environ["QIWO_DATA_DIR"]) / "effects").open("a", encoding="utf-8") as file:
        file.write(f"{word}\n")
    await asyncio.sleep(seconds)
    return f"wrote {word}"


@plugin.tool(risk="write")
async def wipe(scope: str = "all") -> str:
    """Forget everything: what a call with broken arguments must never get to.

    Args:
        scope: What to forget.
    """
    return await note(f"wiped {scope}")


@plugin.tool(risk="read", parallel=True)
async def sing() -> Media:
    """Return a sound and not a word."""
    return Media(b"RIFF\x04\x00\x00\x00WAVE", "audio/x-wav")


@plugin.tool(risk="read", parallel=True)
def twice() -> Iterator[str]:
    """Return what yields twice."""
    return iter(["once", "twice"])


@plugin.tool(risk="read", parallel=True)
async def twice_in_time() -> AsyncIterator[str]:
    """Return what yields twice, asynchronously."""

    async def words() -> AsyncIterator[str]:
        yield "once"
        yield "twice"

    return words()


@plugin.tool(risk="read", parallel=True)
async def freeze(seconds: float) -> str:
    """Keep the whole process from working.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point
    return "thawed"
