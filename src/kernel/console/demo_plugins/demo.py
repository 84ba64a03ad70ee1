"""Two tools that misbehave on request: the playground's, and loaded only with it."""

import asyncio

from kernel import Plugin

plugin = Plugin("demo")


@plugin.tool(risk="read")
async def crash_now() -> str:
    """Crash."""
    raise RuntimeError("这是演示用的崩溃")


@plugin.tool(risk="read")
async def slow_now() -> str:
    """Take twenty seconds."""
    await asyncio.sleep(20)
    return "终于做完了"
