"""Turns to the messages of the API: a call and its result are two messages of one exchange, derived only here."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernel.adapters.model.reading import Json, loads, mapping
from kernel.conversation import Exchange, Interrupted, Ok, Step, Turn, text_of
from kernel.errors import ModelFault
from kernel.ports import Request
from kernel.source import Inbound
from kernel.tools import Tool

Message = dict[str, Any]


# -- what servers disagree about -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dialect:
    """One server's demands, as far as its refusals have taught us. A field moves once, away from its default."""

    stream: bool = True
    stream_options: bool = True
    empty_content: str | None = ""
    reasoning: bool = False
    extra_content: bool = True

    def lesson(self, refusal: ModelFault) -> dict[str, Any]:
        """The field to change after this refusal; none if it names nothing that is still as it was."""
        if refusal.status in (400, 422):
            for pattern, field, value in _LESSONS:
                if getattr(self, field) != value and pattern.search(refusal.detail):
                    return {field: value}
        return {}


_LESSONS: tuple[tuple[re.Pattern[str], str, Any], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), field, value)
    for pattern, field, value in (
        (r"stream_options|include_usage", "stream_options", False),
        (r"reasoning_content", "reasoning", True),
        (r"extra_content", "extra_content", False),
        (
            r"content.{0,60}\b(empty|blank|at least 1)\b|\b(empty|blank)\b.{0,20}content|must not be empty",
            "empty_content",
            None,
        ),
        (r"(not|n't|un)\W?support.{0,20}\bstream|\bstream(ing)?\b.{0,20}(not|un)\W?support", "stream", False),
    )
)


def body_of(model: str, request: Request, messages: Sequence[Message], dialect: Dialect) -> bytes:
    """The request as bytes. Lone surrogates, which no server can read, become question marks."""
    body: Message = {"model": model, "messages": messages, "stream": dialect.stream}
    if dialect.stream and dialect.stream_options:
        body["stream_options"] = {"include_usage": True}
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _tool(tool: Tool) -> Message:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


# -- messages ------------------------------------------------------------------------------------------------


def messages_of(request: Request, dialect: Dialect) -> list[Message]:
    """The system text, then every turn: who said what, what was called with which result, what was answered."""
    messages: list[Message] = [{"role": "system", "content": request.system}] if request.system else []
    note = ""
    for turn in request.turns:
        messages += _turn(turn, dialect, note)
        note = _undelivered(turn)
    return messages


def _turn(turn: Turn, dialect: Dialect, note: str) -> list[Message]:
    messages: list[Message] = [{"role": "user", "content": note + _said([*turn.inbounds, *_joined(turn, 0)])}]
    for step in turn.steps:
        messages += _step(step, dialect)
        if steered := _joined(turn, step.number + 1):
            messages.append({"role": "user", "content": _said(steered)})
    said = turn.reply.call.raw if turn.reply else ""
    if said and messages[-1] != (answer := {"role": "assistant", "content": said}):
        messages.append(answer)
    return messages


def _joined(turn: Turn, step: int) -> list[Inbound]:
    return [joined.inbound for joined in turn.joined if joined.step == step]


def _said(inbounds: Sequence[Inbound]) -> str:
    return "\n".join(_heard(inbound) for inbound in inbounds)


def _undelivered(turn: Turn) -> str:
    """What the model is told of an answer that did not arrive, or may not have: it stands before what came next."""
    if turn.reply is None or isinstance(turn.reply.outcome, Ok):
        return ""
    return f"[delivery of the answer above | {_plain(turn.reply.text)}]\n"


def _heard(inbound: Inbound) -> str:
    """A line that tells who speaks, and the words; neither the name nor the words can write such a line."""
    source = inbound.source
    head = f'[user {source.user} | role {source.role} | unverified name "{_plain(source.name)}"]'
    return head + "\n" + re.sub(r"\[(?=user |delivery )", r"\\[", inbound.text)


def _plain(name: str) -> str:
    return "".join(c if c.isprintable() and c not in '[]|"\\' else f"\\u{ord(c):04x}" for c in name)


def _step(step: Step, dialect: Dialect) -> list[Message]:
    if not step.exchanges:
        return [{"role": "assistant", "content": step.text}] if step.text else []
    calls = [_call(exchange, dialect) for exchange in step.exchanges]
    asked: Message = {"role": "assistant", "content": step.text or dialect.empty_content, "tool_calls": calls}
    if dialect.reasoning:
        asked["reasoning_content"] = step.reasoning or ""
    return [asked, *(_result(exchange.call.id, exchange.text) for exchange in step.exchanges)]


def _call(exchange: Exchange, dialect: Dialect) -> Message:
    """Names and arguments that a server would choke on are made harmless: the result tells what was wrong."""
    call = exchange.call
    name = re.sub(r"[^A-Za-z0-9_-]", "_", call.name)[:64]
    arguments = call.raw if call.arguments is not None and call.raw.lstrip().startswith("{") else "{}"
    message: Message = {"id": call.id, "type": "function", "function": {"name": name, "arguments": arguments}}
    extra = extra_content(call.wire_id) if dialect.extra_content else None
    return message | {"extra_content": extra} if extra else message


def _result(call: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call, "content": text}


def with_extra(wire_id: str, extra: Json) -> str:
    """What the provider wants back with its call, a thought's signature say, in the one field that is kept."""
    return json.dumps({"id": wire_id, "extra_content": extra}) if extra else wire_id


def extra_content(wire_id: str) -> Json:
    return mapping(loads(wire_id)).get("extra_content") if wire_id.startswith("{") else None


# -- the alarm -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mended:
    """A request whose calls and results did not pair, and had to be mended: a bug of ours, to be counted."""

    tools: tuple[str, ...]
    detail: str


def paired(messages: Sequence[Message]) -> tuple[list[Message], Mended | None]:
    """The messages with exactly one result after each call. None as long as the invariant holds: always."""
    out: list[Message] = []
    waiting: dict[str, Message] = {}
    wrong: list[str] = []
    for message in (*messages, {"role": "end"}):
        if message["role"] == "tool":
            if waiting.pop(message["tool_call_id"], None) is None:
                wrong.append(message["tool_call_id"])
                continue
        else:
            wrong += [call["function"]["name"] for call in waiting.values()]
            out += [_result(call, text_of(Interrupted())) for call in waiting]
            calls = message.get("tool_calls", ())
            waiting = {call["id"]: call for call in calls}
            if len(waiting) != len(calls):
                wrong += [call["function"]["name"] for call in calls if call is not waiting[call["id"]]]
                message = message | {"tool_calls": [*waiting.values()]}
        out.append(message)
    return out[:-1], Mended(tuple(wrong), f"{len(wrong)} calls or results stood alone") if wrong else None
