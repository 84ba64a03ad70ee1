"""A plugin for tests: everything that can go wrong with a tool, each under its own name."""

import asyncio
import time

from kernel import Plugin, ToolError

plugin = Plugin("trouble")


@plugin.tool(risk="read", parallel=True)
async def fine(word: str = "fine") -> str:
    """Say a word.

    Args:
        word: What to say.
    """
    return word


@plugin.tool(risk="read", parallel=True)
async def boom() -> str:
    """Raise what a bug raises."""
    raise RuntimeError("the wheel came off")


@plugin.tool(risk="read", parallel=True)
async def leave() -> str:
    """Try to end the process."""
    raise SystemExit(3)


@plugin.tool(risk="read", parallel=True)
def leave_in_thread() -> str:
    """Try to end the process from a thread."""
    raise SystemExit(4)


@plugin.tool(risk="read", parallel=True)
async def give_up() -> str:
    """Say that it cannot be done."""
    raise ToolError("the well is dry")


@plugin.tool(risk="read", parallel=True, timeout=0.3)
async def late() -> str:
    """Never come back in time."""
    await asyncio.sleep(30)
    return "too late"


@plugin.tool(risk="read", parallel=True, timeout=0.3)
def late_in_thread() -> str:
    """Block a thread for longer than its deadline."""
    time.sleep(3)
    return "too late"


@plugin.tool(risk="read", parallel=True)
async def slow(seconds: float = 20.0) -> str:
    """Take long, but end.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(seconds)
    return "slept"


@plugin.tool(risk="write")
async def effect(word: str) -> str:
    """Have an effect.

    Args:
        word: What is written.
    """
    return f"wrote {word}"


@plugin.tool(risk="read", parallel=True)
async def unspeakable() -> object:
    """Return what cannot be told."""
    return object()


@plugin.tool
async def dangerous() -> str:
    """A tool that says nothing of its risk."""
    return "done"


@plugin.tool(risk="read", parallel=True)
def slow_in_thread(seconds: float = 20.0) -> str:
    """Block a thread for long.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "slept"
