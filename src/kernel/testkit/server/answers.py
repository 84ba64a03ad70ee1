"""What the fake model can answer, and how OpenAI writes it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from kernel.testkit.server.wire import HttpResponse

JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream; charset=utf-8"}
CREATED = 1_790_000_000
PIECE = 8
"""Characters in one streamed piece of text or arguments."""


@dataclass(frozen=True, slots=True)
class Say:
    """Text, or calls, or both. Arguments given as a string go out as they are, valid JSON or not."""

    text: str = ""
    calls: tuple[tuple[str, Mapping[str, Any] | str], ...] = ()


@dataclass(frozen=True, slots=True)
class Fail:
    """An HTTP error; the body is JSON, or text that goes out as it is."""

    status: int
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Raw:
    """A body of exactly these pieces; `cut` breaks the connection after the last."""

    pieces: tuple[bytes, ...]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: EVENTS)
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Hang:
    """The request is taken, and no answer ever comes."""


Answer = Say | Fail | Raw | Hang


def error(message: str, kind: str = "invalid_request_error", param: str | None = None) -> dict[str, Any]:
    """An error body as OpenAI writes it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}


def failed(fail: Fail) -> HttpResponse:
    body = error("the script says so", "server_error") if fail.body is None else fail.body
    if isinstance(body, str):
        return HttpResponse(fail.status, (body.encode(),), {"content-type": "text/plain", **fail.headers})
    return HttpResponse(fail.status, (_dump(body),), {**JSON, **fail.headers})


def said(say: Say, request: Mapping[str, Any], ids: "count[int]") -> HttpResponse:
    """The answer in the form that the request asked for: one document, or a stream."""
    number = next(ids)
    base = {"id": f"chatcmpl-{number}", "created": CREATED, "model": request["model"]}
    calls = [_call(f"call_{next(ids)}", name, arguments) for name, arguments in say.calls]
    usage = _usage(say, request)
    if request.get("stream"):
        wants_usage = (request.get("stream_options") or {}).get("include_usage")
        chunks = [*_chunks(say.text, calls), *([{"choices": [], "usage": usage}] if wants_usage else [])]
        head = {**base, "object": "chat.completion.chunk"}
        lines = [b"data: %b\n\n" % _dump({**head, **chunk}) for chunk in chunks]
        return HttpResponse(200, (*lines, b"data: [DONE]\n\n"), EVENTS)
    message = {"role": "assistant", "content": say.text or None, **({"tool_calls": calls} if calls else {})}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(calls)}
    document = {**base, "object": "chat.completion", "choices": [choice], "usage": usage}
    return HttpResponse(200, (_dump(document),), JSON)


def _call(ident: str, name: str, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": raw}}


def _chunks(text: str, calls: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield _chunk({"role": "assistant", "content": ""})
    for piece in _pieces(text):
        yield _chunk({"content": piece})
    for index, call in enumerate(calls):
        function = call["function"]
        yield _chunk({"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]})
        for piece in _pieces(function["arguments"]):
            yield _chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield _chunk({}, _finish(calls))


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _finish(calls: list[dict[str, Any]]) -> str:
    return "tool_calls" if calls else "stop"


def _pieces(text: str) -> Iterator[str]:
    return (text[at : at + PIECE] for at in range(0, len(text), PIECE))


def _usage(say: Say, request: Mapping[str, Any]) -> dict[str, int]:
    """Four characters count as a token: only the order of size matters."""
    prompt = 1 + sum(len(str(message.get("content"))) for message in request["messages"]) // 4
    completion = 1 + (len(say.text) + sum(len(str(call)) for call in say.calls)) // 4
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
