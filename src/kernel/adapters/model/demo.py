"""A model without a model: it knows a few prompts, really calls the tools, and marks every text as a demo."""

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from kernel.conversation import Crashed, Denied, Exchange, Quarantined, Turn
from kernel.ports import Chunk, Reply, Request, RequestedCall
from kernel.tools import Tool

MARK = "「演示模型」"


@dataclass(frozen=True, slots=True)
class _Script:
    """What a keyword in the last message makes the demo call."""

    keywords: tuple[str, ...]
    calls: tuple[tuple[str, Mapping[str, Any]], ...]
    unseen: bool = False
    """Also call what is not offered, to show how that ends."""


_SENT = f"{MARK}这一句由 output_send__qq 发出。"
_SCRIPTS = (
    _Script(("一步两个",), (("time_now", {}), ("output_send__qq", {"text": _SENT}))),
    _Script(("几点",), (("time_now", {}),)),
    _Script(("状态", "call state"), (("qq_call_state", {}),), unseen=True),
    _Script(("崩溃",), (("crash_now", {}),), unseen=True),
    _Script(("慢",), (("slow_now", {}),)),
)

PROMPTS: tuple[tuple[str, str], ...] = (
    ("允许的调用", "现在几点？"),
    ("被拒绝的调用", "查一下我的状态"),
    ("一步两个调用", "一步两个：报时，再发一句话"),
    ("崩溃的插件（三次后熔断）", "让工具崩溃一次"),
    ("慢工具（用 /stop 打断）", "跑一个慢工具"),
)
"""What the demo understands, as (label, text to send)."""

_PIECE = 12


class DemoModel:
    """`kernel.ports.Model`, deterministic: the same request gets the same answer."""

    @property
    def name(self) -> str:
        return "demo"

    async def ask(self, request: Request) -> AsyncGenerator[Chunk | Reply, None]:
        reply = _answer(request.turns[-1], {tool.name: tool for tool in request.tools})
        for start in range(0, len(reply.text), _PIECE):
            yield Chunk(reply.text[start : start + _PIECE])
        yield reply

    async def close(self) -> None:
        """Nothing to close."""


def _answer(turn: Turn, tools: Mapping[str, Tool]) -> Reply:
    if turn.steps:
        return Reply(f"{MARK}{_results(turn)}")
    said = turn.inbounds[-1].text.lower()
    script = next((script for script in _SCRIPTS if any(word in said for word in script.keywords)), None)
    if script is None:
        return Reply(f"{MARK}我只会演示。可以对我说：\n" + "\n".join(f"· {text}" for _, text in PROMPTS))
    names = [name for name, _ in script.calls]
    absent = [name for name in names if name not in tools]
    if absent and not script.unseen:
        return Reply(f"{MARK}这里没有给我工具 {'、'.join(absent)}，这一项演示不了。")
    calls = tuple(_call(name, dict(arguments), tools.get(name), turn) for name, arguments in script.calls)
    return Reply(f"{MARK}我来调用 {'、'.join(names)}。", calls, "tool_calls")


def _results(turn: Turn) -> str:
    return "，".join(_told(exchange) for exchange in turn.steps[-1].exchanges) + "。"


def _told(exchange: Exchange) -> str:
    name = exchange.call.name
    match exchange.outcome:
        case Quarantined(seconds=seconds) if seconds > 0:
            return f"{name} 正在熔断，这次没有运行，还要等 {ceil(seconds)} 秒"
        case Denied(reason=reason):
            return f"{name} 被拒绝，没有运行：{reason.removesuffix('。')}"
        case Crashed(error=error):
            return f"{name} 崩溃了（{error}），我没事"
        case _:
            return f"{name} 的结果是「{exchange.text}」"


def _call(name: str, arguments: dict[str, Any], tool: Tool | None, turn: Turn) -> RequestedCall:
    """The call; what else the tool demands is filled in with the speaker's id."""
    schema = tool.parameters if tool else {}
    for wanted in schema.get("required", ()):
        number = schema["properties"][wanted].get("type") in ("integer", "number") and turn.source.user.isdecimal()
        arguments.setdefault(wanted, int(turn.source.user) if number else turn.source.user)
    return RequestedCall(name, json.dumps(arguments, ensure_ascii=False), arguments)
