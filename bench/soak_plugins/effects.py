"""Side effects that can be counted from outside: each is one line in the file that SOAK_EFFECTS names."""

import asyncio
import os
import random

from kernel import Context, Plugin

plugin = Plugin("effects")


def note(kind: str, call: str, word: str) -> None:
    """One write to an append-only file: it is there whole, or not at all."""
    handle = os.open(os.environ["SOAK_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, f"{kind} {call} {word}\n".encode())
    finally:
        os.close(handle)


@plugin.tool(risk="write")
async def spend(context: Context, word: str) -> str:
    """Have an effect that must not happen twice.

    Args:
        word: What for.
    """
    await asyncio.sleep(random.random() / 50)  # so that a kill can fall before the effect
    note("spend", context.call, word)
    await asyncio.sleep(random.random() / 50)  # and behind it, before its result is on disk
    return f"spent {word}"


@plugin.tool(risk="write", parallel=True, idempotent=True)
async def put(context: Context, word: str) -> str:
    """Have an effect that may happen again.

    Args:
        word: What for.
    """
    await asyncio.sleep(random.random() / 50)
    note("put", context.call, word)
    return f"put {word}"


@plugin.tool(risk="read", parallel=True)
async def look(word: str) -> str:
    """Have no effect.

    Args:
        word: What for.
    """
    await asyncio.sleep(random.random() / 50)
    return f"saw {word}"
