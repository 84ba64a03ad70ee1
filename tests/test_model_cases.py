"""Every recorded quirk of a server, through the public port, over real HTTP."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.replay import FakeClock, Replay

from kernel.adapters.model.client import OpenAIModel
from kernel.adapters.model.errors import fault_of
from kernel.conversation import Exchange, Ok, Step, ToolCall, Turn, Usage
from kernel.errors import FaultKind, ModelFault
from kernel.ports import Chunk, Reply, Request, RequestedCall
from kernel.source import ConversationId, Inbound, Role, Scene, SceneKind, Source
from kernel.tools import Risk, tool_from

CASES = [json.loads(path.read_text("utf-8")) for path in sorted((Path(__file__).parent / "data/model").glob("*.json"))]
KINDS = {
    "protocol": {FaultKind.NOT_FOUND, FaultKind.TRUNCATED, FaultKind.SERVER, FaultKind.BAD_REQUEST},
    "api": {FaultKind.SERVER},
}
"""Two words of the cases that are no kinds of the kernel: what came was no answer at all."""


def qq_call_state(uid: int) -> str:
    """Look up a user's state."""
    return str(uid)


def output_send__qq(text: str) -> str:
    """Send a text."""
    return text


TOOLS = tuple(tool_from(function, plugin="qq", risk=Risk.READ) for function in (qq_call_state, output_send__qq))
SOURCE = Source("qq", "1000", Scene(SceneKind.GROUP, "10001"), "20002", Role.MEMBER, "小明")


def turn_of(text: str, *steps: Step) -> Turn:
    inbound = Inbound(SOURCE, text, text, 0.0)
    return Turn(text, ConversationId("qq/1000/group/10001"), SOURCE, (inbound,), 0.0, steps=steps)


def step_of(number: int, reply: Reply) -> Step:
    """The step as the kernel builds it: ids of its own, every call with a result."""
    calls = [
        ToolCall(f"c{number:04}x{place:03}", call.name, call.raw, call.arguments, call.wire_id)
        for place, call in enumerate(reply.calls)
    ]
    exchanges = tuple(map(Exchange, calls))
    for exchange in exchanges:
        exchange.settle(Ok("ok"))
    return Step(number, reply.text, exchanges, reply.reasoning, reply.usage)


async def collect(model: OpenAIModel, request: Request) -> tuple[str, Reply]:
    """What was shown, and the one reply, which comes last."""
    *chunks, reply = [piece async for piece in model.ask(request)]
    assert isinstance(reply, Reply)
    assert all(isinstance(chunk, Chunk) and chunk.text for chunk in chunks)
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, Chunk)), reply


async def play(case: dict[str, Any]) -> tuple[str, Reply, list[Any]]:
    """Run a case; a second request follows where its history is what the case is about."""
    clock = FakeClock()
    hint = case.get("request_hint", {})
    answers = case["turns"] if isinstance(case.get("turns"), list) else [case]
    async with Replay(answers, clock, case.get("rules", ())) as server:
        url = hint.get("base_url", server.url)
        model = OpenAIModel(url, "sk-1", "m", timeout=hint.get("timeout", 60), clock=clock, on_mend=pytest.fail)
        old = [RequestedCall("qq_call_state", "{}", {}, wire_id) for wire_id in hint.get("history_ids", ())]
        turns = (turn_of("before", step_of(1, Reply("", tuple(old)))),) if old else ()
        request = Request("be kind", (*turns, turn_of("hi")), TOOLS)
        try:
            shown, reply = await collect(model, request)
            if case.get("turns"):
                again = Request("be kind", (*turns, turn_of("hi", step_of(2, reply))), TOOLS)
                await collect(model, again)
        finally:
            await model.close()
        return shown, reply, server.requests


@pytest.mark.parametrize("case", [c for c in CASES if "ok" in c["expect"]], ids=lambda case: case["id"])
def test_answer_is_understood(case: dict[str, Any]) -> None:
    """A whole answer becomes the one right Reply, and what is shown on the way is its text."""
    shown, reply, requests = asyncio.run(play(case))
    expected = case["expect"]["ok"]
    assert reply.text == expected["text"] == shown.rstrip()
    calls = [(call.name, "!invalid" if call.arguments is None else call.arguments) for call in reply.calls]
    assert calls == [(call["name"], call["args"]) for call in expected["calls"]]
    assert reply.finish == {"other": "stop"}.get(expected["finish"], expected["finish"])
    usage = expected["usage"] or {"in": 0, "out": 0}
    assert reply.usage == Usage(usage["in"], usage["out"], reply.usage.cached)
    assert reply.reasoning == expected["reasoning"]
    sent = json.dumps(requests)
    assert not [wire_id for wire_id in expected.get("ids_not", ()) if wire_id in sent]


@pytest.mark.parametrize("case", [c for c in CASES if "error" in c["expect"]], ids=lambda case: case["id"])
def test_failure_is_named(case: dict[str, Any]) -> None:
    """A failure becomes one ModelFault of the right kind, which says whether and when to try again."""
    with pytest.raises(ModelFault) as caught:
        asyncio.run(play(case))
    expected = case["expect"]
    assert caught.value.kind in set().union(
        *(KINDS.get(kind, {kind}) for kind in (expected["error"], *expected.get("also", ())))
    )
    assert caught.value.retryable == expected["retryable"]
    assert caught.value.retry_after == expected.get("retry_after")


WORDINGS = (
    (FaultKind.AUTH, 401, "Incorrect API key provided: sk-***"),
    (FaultKind.AUTH, 400, "API key not valid. Please pass a valid API key."),
    (FaultKind.AUTH, 403, "Country, region, or territory not supported"),
    (FaultKind.BILLING, 429, "insufficient_quota"),
    (FaultKind.BILLING, 403, "用户额度不足, 剩余额度: 0"),
    (FaultKind.BILLING, 400, "Arrearage: your account is not in good standing"),
    (FaultKind.RATE_LIMIT, 429, "RESOURCE_EXHAUSTED: you exceeded your current quota, check your billing details"),
    (FaultKind.RATE_LIMIT, 429, "Request too large for m on tokens per min (TPM): Limit 10000, Requested 12000"),
    (FaultKind.RATE_LIMIT, 400, "rate limit exceeded: 10000 tokens per minute"),
    (FaultKind.CONTEXT_LENGTH, 400, "prompt is too long: 210000 tokens > 200000 maximum"),
    (FaultKind.CONTEXT_LENGTH, 400, "invalid params, context window exceeds limit (2013)"),
    (
        FaultKind.CONTEXT_LENGTH,
        400,
        "The input token count (120) exceeds the maximum number of tokens allowed (100).",
    ),
    (FaultKind.CONTEXT_LENGTH, 413, "Request Entity Too Large"),
    (FaultKind.CONTENT_FILTER, 400, "Content Exists Risk"),
    (FaultKind.CONTENT_FILTER, 400, "The request was rejected because it was considered high risk"),
    (FaultKind.CONTENT_FILTER, 422, "input new_sensitive (1026)"),
    (FaultKind.UNSUPPORTED_IMAGE, 400, "unknown variant `image_url`, expected `text`"),
    (FaultKind.UNSUPPORTED_IMAGE, 400, "At most 0 image(s) may be provided in one request."),
    (FaultKind.UNSUPPORTED_IMAGE, 404, "No endpoints found that support image input"),
    (FaultKind.UNSUPPORTED_IMAGE, 500, "image input is not supported - hint: you may need to provide the mmproj"),
    (FaultKind.UNSUPPORTED_TOOLS, 404, "No endpoints found that support tool use."),
    (FaultKind.UNSUPPORTED_TOOLS, 400, '"auto" tool choice requires --enable-auto-tool-choice to be set'),
    (FaultKind.UNSUPPORTED_TOOLS, 400, "Function calling is not enabled for this model"),
    (FaultKind.BAD_HISTORY, 400, "messages.1: `tool_use` ids were found without `tool_result` blocks after"),
    (FaultKind.BAD_HISTORY, 400, "Not the same number of function calls and responses"),
    (FaultKind.BAD_HISTORY, 400, "Invalid request: tool_call_id call_1 is not found"),
    (FaultKind.BAD_HISTORY, 400, "Please ensure that function call turn comes immediately after a user turn"),
    (FaultKind.NOT_FOUND, 400, "Model Not Exist"),
    (FaultKind.NOT_FOUND, 404, "The model `qwen-image` does not exist"),
    (FaultKind.NOT_FOUND, 301, "moved"),
    (FaultKind.BAD_REQUEST, 400, "temperature must be below 2"),
    (FaultKind.TIMEOUT, 408, "request timeout"),
    (FaultKind.SERVER, 529, "overloaded"),
    (FaultKind.SERVER, 504, "<html><style>background: image not supported</style></html>"),
)


@pytest.mark.parametrize(("kind", "status", "said"), WORDINGS)
def test_wordings(kind: FaultKind, status: int, said: str) -> None:
    """Each server has its own words for the same fourteen things; pages of proxies are judged by status alone."""
    body = said if said.startswith("<") else json.dumps({"error": {"message": said}})
    failure = fault_of(status, {}, body.encode(), 0.0)
    assert failure.kind == kind
    assert failure.status == status


def test_own_words_are_no_evidence() -> None:
    """A server that repeats our messages in its refusal does not lead us astray by what a user wrote."""
    said = {"detail": [{"loc": ["body", "n"], "msg": "too small", "input": "maximum context length"}]}
    assert fault_of(422, {}, json.dumps(said).encode(), 0.0).kind is FaultKind.BAD_REQUEST


def test_nesting_of_any_depth() -> None:
    """No refusal is nested so deeply that reading it fails in another way than a refusal."""
    for depth in range(600, 1_100):
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            body = opening * depth + "1" + closing * depth
            assert fault_of(400, {}, body.encode(), 0.0).kind is FaultKind.BAD_REQUEST


def test_retry_after_in_all_spellings() -> None:
    """Seconds, milliseconds or a date; nonsense is ignored."""
    date = "Tue, 14 Nov 2023 22:13:30 GMT"
    odds = ("soon", "Tue, 14 Nov 99999999999 22:13:30 GMT", "nan", "inf", "-inf")
    spellings = (
        {"retry-after": "7"},
        {"retry-after-ms": "1500"},
        {"retry-after": date},
        *({"retry-after": odd} for odd in odds),
    )
    waits = [fault_of(429, headers, b"", 1_700_000_000.0).retry_after for headers in (*spellings, {})]
    assert waits == [7.0, 1.5, 10.0, *[None] * len(odds), None]
