"""The demo model: every prompt does what its label says, and every text says that it is a demo."""

import asyncio
import dataclasses

import pytest
from tests.test_model_cases import TOOLS, step_of, turn_of

from kernel.adapters.model.demo import MARK, PROMPTS, DemoModel
from kernel.conversation import Turn
from kernel.ports import Chunk, Reply, Request
from kernel.tools import Risk, tool_from


def time_now(zone: str = "Asia/Shanghai") -> str:
    """Tell the time."""
    return zone


def crash_now() -> str:
    """Crash."""
    raise RuntimeError


def slow_now() -> str:
    """Take long."""
    return ""


ALL = (*TOOLS, *(tool_from(f, plugin="demo", risk=Risk.READ) for f in (time_now, crash_now, slow_now)))


def ask(turn: Turn, tools: tuple = ALL) -> Reply:
    async def run() -> list[Chunk | Reply]:
        return [piece async for piece in DemoModel().ask(Request("", (turn,), tools))]

    *chunks, reply = asyncio.run(run())
    assert isinstance(reply, Reply)
    assert len(chunks) > 1
    assert "".join(chunk.text for chunk in chunks if isinstance(chunk, Chunk)) == reply.text
    assert reply.text.startswith(MARK)
    return reply


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("现在几点？", ["time_now"]),
        ("看看 Call State", ["qq_call_state"]),
        ("一步两个", ["time_now", "output_send__qq"]),
        ("崩溃吧", ["crash_now"]),
        ("慢慢来", ["slow_now"]),
        ("你好", []),
    ],
)
def test_keywords(text: str, names: list[str]) -> None:
    """A keyword in the last message makes the demo ask for real tools, with arguments that they accept."""
    reply = ask(turn_of(text))
    assert [call.name for call in reply.calls] == names
    assert reply.finish == ("tool_calls" if names else "stop")
    tools = {tool.name: tool for tool in ALL}
    assert all(tools[call.name].validate(call.arguments or {}) is not None for call in reply.calls)


def test_every_prompt_calls_something() -> None:
    """What the playground offers to click is understood, and each does something else."""
    asked = [tuple(call.name for call in ask(turn_of(text)).calls) for _, text in PROMPTS]
    assert all(asked)
    assert len(set(asked)) == len(PROMPTS)


def test_help_lists_the_prompts() -> None:
    """Anything else is answered with what can be asked."""
    reply = ask(turn_of("你好"))
    assert all(text in reply.text for _, text in PROMPTS)


def test_a_denied_call_is_shown() -> None:
    """The state is asked for even by a source that is not offered it; other absent tools are named instead."""
    assert [call.name for call in ask(turn_of("状态"), ()).calls] == ["qq_call_state"]
    absent = ask(turn_of("几点"), ())
    assert not absent.calls
    assert "time_now" in absent.text


def test_results_are_told() -> None:
    """After the tools have run, one sentence repeats each result, and nothing more is called."""
    reply = ask(turn_of("一步两个"))
    step = step_of(1, reply)
    told = ask(turn_of("一步两个", step))
    assert not told.calls
    assert told.text.count("「ok」") == len(step.exchanges) == 2


def test_the_last_message_counts() -> None:
    """Of several messages in a turn the last one is obeyed."""
    turn = turn_of("几点")
    merged = dataclasses.replace(turn, inbounds=(*turn.inbounds, *turn_of("崩溃").inbounds))
    assert [call.name for call in ask(merged).calls] == ["crash_now"]
