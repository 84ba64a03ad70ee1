"""A plugin for tests: a hook at each of the seven stages, each moved by a word in what passes."""

import asyncio

from kernel import After, Answer, Before, Closed, Input, Ok, Outgoing, Plugin, Proceed, Prompt, Refuse, Respond

plugin = Plugin("onlooker")


@plugin.tool(risk="read")
async def endings() -> list[str]:
    """Tell how the turns ended that after_output saw."""
    return seen


seen: list[str] = []


@plugin.stage("on_input")
async def on_input(message: Input) -> Proceed | Respond | None:
    if "canned" in message.text:
        return Respond("a canned answer")
    if "swap me" in message.text:
        return Proceed(message.text.replace("swap me", "swapped"))
    if "on_input crashes" in message.text:
        raise RuntimeError("on_input crashed")
    if "on_input hangs" in message.text:
        await asyncio.sleep(60)
    return None


@plugin.stage("pre_action")
async def pre_action(prompt: Prompt) -> Proceed:
    return Proceed(f"{prompt.system}\nAdded by a plugin.")


@plugin.stage("post_action")
async def post_action(answer: Answer) -> Respond | None:
    return Respond("a hook took over") if "take over" in answer.text else None


@plugin.stage("before_toolcall")
async def before_toolcall(call: Before) -> Refuse | None:
    return Refuse("not for anybody") if call.arguments.get("word") == "forbidden" else None


@plugin.stage("after_toolcall")
async def after_toolcall(result: After) -> object:
    if result.arguments.get("word") == "nonsense":
        return 42
    if result.arguments.get("word") == "mask":
        return Ok("masked")
    return None


@plugin.stage("before_output")
async def before_output(outgoing: Outgoing) -> Proceed | None:
    if "silence" in outgoing.text:
        return Proceed("")
    return Proceed(outgoing.text.replace("damn", "d**n")) if "damn" in outgoing.text else None


@plugin.stage("after_output")
async def after_output(closed: Closed) -> None:
    seen.append(f"{closed.ending}: {closed.text}")
