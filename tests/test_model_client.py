"""The client: one place that retries, one deadline, switches learned once, a key that never shows."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from tests.replay import FakeClock, Replay
from tests.test_model_cases import TOOLS, collect, step_of, turn_of

from kernel.adapters.model.client import OpenAIModel, endpoint
from kernel.errors import ConfigError, FaultKind, ModelFault
from kernel.ports import Reply, Request, RequestedCall

Answer = Mapping[str, Any]


def body(**message: Any) -> Answer:
    return {"body": {"choices": [{"message": message, "finish_reason": "stop"}]}}


def delta(text: str, finish: str | None = None) -> str:
    choice = '{"choices":[{"delta":{"content":"%s"},"finish_reason":%s}]}'
    return "data: " + choice % (text, f'"{finish}"' if finish else "null") + "\n\n"


GOOD = body(content="good")
BROKEN: Answer = {"status": 500, "body": {"error": "oops"}}
ASK = Request("be kind", (turn_of("hi"),), TOOLS)
CALL = RequestedCall("qq_call_state", '{"uid":1}', {"uid": 1}, '{"id":"a","extra_content":{"google":{}}}')
AGAIN = Request("be kind", (turn_of("hi", step_of(1, Reply("", (CALL,)))),), TOOLS)

Scene = Callable[[OpenAIModel, Replay, FakeClock], Awaitable[None]]


def play(scene: Scene, *answers: Answer, rules: Sequence[Answer] = (), timeout: float = 60, key: str = "sk-1") -> None:
    async def run() -> None:
        clock = FakeClock()
        async with Replay(answers, clock, rules) as server:
            model = OpenAIModel(server.url, key, "m", timeout=timeout, clock=clock, on_mend=pytest.fail)
            try:
                await scene(model, server, clock)
            finally:
                await model.close()

    asyncio.run(run())


async def fail(model: OpenAIModel, request: Request = ASK) -> ModelFault:
    with pytest.raises(ModelFault) as caught:
        await collect(model, request)
    return caught.value


# -- trying again --------------------------------------------------------------------------------------------


def test_two_retries_then_the_fault() -> None:
    """A failing server gets three requests in all, with growing pauses, and the last fault is told."""

    async def scene(model: OpenAIModel, server: Replay, clock: FakeClock) -> None:
        assert (await fail(model)).kind is FaultKind.SERVER
        assert (len(server.requests), clock.slept) == (3, [1.0, 2.0])

    play(scene, BROKEN)


def test_a_retry_may_succeed() -> None:
    """One 500 is not noticed by anybody."""

    async def scene(model: OpenAIModel, server: Replay, _: FakeClock) -> None:
        shown, reply = await collect(model, ASK)
        assert (shown, reply.text, len(server.requests)) == ("good", "good", 2)

    play(scene, BROKEN, GOOD)


def test_retry_after_is_obeyed() -> None:
    """The server's own word for how long to wait counts, not ours."""

    async def scene(model: OpenAIModel, _: Replay, clock: FakeClock) -> None:
        await collect(model, ASK)
        assert clock.slept == [7.0]

    play(scene, {"status": 429, "headers": {"retry-after": "7"}, "body": None}, GOOD)


def test_no_wait_beyond_the_deadline() -> None:
    """A pause that would outlast the whole deadline is not begun: the chat is told at once."""

    async def scene(model: OpenAIModel, server: Replay, clock: FakeClock) -> None:
        assert (await fail(model)).retry_after == 61.0
        assert (len(server.requests), clock.slept) == (1, [])

    play(scene, {"status": 429, "headers": {"retry-after": "61"}, "body": None}, GOOD)


def test_what_cannot_get_better_is_not_retried() -> None:
    """A history that a server calls broken is an alarm, never a retry."""

    async def scene(model: OpenAIModel, server: Replay, _: FakeClock) -> None:
        assert (await fail(model)).kind is FaultKind.BAD_HISTORY
        assert len(server.requests) == 1

    play(scene, {"status": 400, "body": {"error": "insufficient tool messages"}})


def test_no_retry_after_text_was_shown() -> None:
    """What the user has begun to read is not said twice."""

    async def scene(model: OpenAIModel, server: Replay, _: FakeClock) -> None:
        assert (await fail(model)).kind is FaultKind.CONNECTION
        assert len(server.requests) == 1

    play(scene, {"sse": [delta("half"), {"drop": True}]}, GOOD)


# -- the deadline --------------------------------------------------------------------------------------------


def test_one_deadline_for_all() -> None:
    """A server that hangs costs the timeout once, however many retries there could be."""

    async def scene(model: OpenAIModel, server: Replay, clock: FakeClock) -> None:
        assert (await fail(model)).kind is FaultKind.TIMEOUT
        assert (len(server.requests), clock.slept) == (1, [])

    play(scene, {"sse": [": ping\n\n", {"sleep": 61}, delta("late", "stop")]}, GOOD)


def test_retries_share_the_deadline() -> None:
    """The second attempt gets what the first one left."""

    async def scene(model: OpenAIModel, server: Replay, _: FakeClock) -> None:
        assert (await fail(model)).kind is FaultKind.TIMEOUT
        assert len(server.requests) == 2

    slow = [{"sleep": 31}, 'data: {"error": "oops"}\n\n']
    play(scene, {"sse": slow}, {"sse": slow}, GOOD)


@pytest.mark.parametrize("ending", [{"drop": True}, {"sleep": 3}])
def test_a_finished_answer_stands(ending: Answer) -> None:
    """Once the server said that it was done, a cut or a stream that is never closed spoils nothing."""

    async def scene(model: OpenAIModel, server: Replay, _: FakeClock) -> None:
        _, reply = await collect(model, ASK)
        assert (reply.text, len(server.requests)) == ("hi", 1)

    play(scene, {"sse": [delta("hi", "stop"), ending, {"hang": True}]})


# -- leaving early -------------------------------------------------------------------------------------------


def test_cancelling_hangs_up() -> None:
    """A cancelled ask closes its connection at once; the server need not finish talking."""

    async def scene(model: OpenAIModel, server: Replay, _: FakeClock) -> None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(collect(model, ASK))
            await server.hanging.acquire()
            task.cancel()
        await asyncio.wait_for(server.hung_up.wait(), 5)

    play(scene, {"sse": [delta("hi"), {"hang": True}]})


def test_leaving_hangs_up() -> None:
    """So does an ask that its reader leaves in the middle."""

    async def scene(model: OpenAIModel, server: Replay, _: FakeClock) -> None:
        async with aclosing(model.ask(ASK)) as pieces:
            await anext(pieces)
        await asyncio.wait_for(server.hung_up.wait(), 5)

    play(scene, {"sse": [delta("hi"), {"hang": True}]})


def test_more_than_a_hundred_at_once() -> None:
    """No pool makes the 101st chat wait for the first."""

    async def scene(model: OpenAIModel, server: Replay, _: FakeClock) -> None:
        asks = [asyncio.ensure_future(collect(model, ASK)) for _ in range(120)]
        async with asyncio.timeout(20):
            for _ in asks:
                await server.hanging.acquire()
        for ask in asks:
            ask.cancel()
        ends = await asyncio.gather(*asks, return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError] * 120

    play(scene, {"sse": [{"hang": True}]})


# -- switches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("has_stream_options", "Unrecognized request argument supplied: stream_options"),
        ("has_stream", "this model does not support streaming"),
        ("turn2_assistant_content_empty", "message at position 2 with role 'assistant' must not be empty"),
        ("turn2_extra_content", "body.messages.1.tool_calls.0.extra_content: extra inputs are not permitted"),
        (
            "turn2_without_reasoning_content",
            "reasoning_content is missing in assistant tool call message at index 2",
        ),
    ],
)
def test_a_refusal_flips_its_switch_once(rule: str, words: str) -> None:
    """A 400 that names a switch costs one request; the lesson is kept for all that follow."""
    turn = turn_of("hi", step_of(1, Reply("", (CALL,), reasoning="mm")))

    async def scene(model: OpenAIModel, server: Replay, clock: FakeClock) -> None:
        for total in (2, 3):
            await collect(model, Request("be kind", (turn,), TOOLS))
            assert (len(server.requests), clock.slept) == (total, [])

    play(scene, GOOD, rules=[{"when": rule, "status": 400, "body": {"error": {"message": words}}}])


def test_reasoning_is_not_echoed_unasked() -> None:
    """Servers that forbid what others demand are served by the default."""

    async def scene(model: OpenAIModel, server: Replay, _: FakeClock) -> None:
        await collect(model, Request("", (turn_of("hi", step_of(1, Reply("", (CALL,), reasoning="mm"))),)))
        assert len(server.requests) == 1

    play(scene, GOOD, rules=[{"when": "turn2_with_reasoning_content", "status": 400, "body": {"error": "no"}}])


def test_a_switch_that_does_not_help_ends() -> None:
    """A server that goes on refusing is asked twice, not for ever."""

    async def scene(model: OpenAIModel, server: Replay, _: FakeClock) -> None:
        assert (await fail(model)).kind is FaultKind.BAD_REQUEST
        assert len(server.requests) == 2

    play(scene, {"status": 400, "body": {"error": "stream_options: no"}})


def test_a_lesson_is_learned_by_all_who_wait_for_it() -> None:
    """Requests that get the same refusal side by side flip one switch, and no other that the words would fit."""
    words = "stream_options: streaming is not supported"

    async def scene(model: OpenAIModel, server: Replay, _: FakeClock) -> None:
        await asyncio.gather(*(collect(model, ASK) for _ in range(4)))
        await collect(model, ASK)
        assert server.requests[-1]["stream"] is True
        assert "stream_options" not in server.requests[-1]

    play(scene, GOOD, rules=[{"when": "has_stream_options", "status": 400, "body": {"error": words}}])


def test_a_refusal_of_any_length() -> None:
    """A page without end is not read to its end."""

    async def scene(model: OpenAIModel, _: Replay, __: FakeClock) -> None:
        failure = await fail(model)
        assert (failure.kind, failure.status) == (FaultKind.BAD_REQUEST, 400)

    play(scene, {"status": 400, "sse": ["x" * 70_000, {"hang": True}]})


def test_a_refusal_that_breaks_off() -> None:
    """The status is told, whatever became of the words."""

    async def scene(model: OpenAIModel, _: Replay, __: FakeClock) -> None:
        assert (await fail(model)).status == 404

    play(scene, {"status": 404, "sse": ["x", {"drop": True}]})


def test_requests_that_learn_side_by_side() -> None:
    """Two requests that are refused for different reasons at the same time both get through."""

    async def scene(model: OpenAIModel, server: Replay, _: FakeClock) -> None:
        answers = await asyncio.gather(*(collect(model, request) for request in (ASK, AGAIN, AGAIN)))
        assert [reply.text for _, reply in answers] == ["good"] * 3
        learned = len(server.requests)
        await collect(model, AGAIN)
        assert len(server.requests) == learned + 1 <= 10

    rules = [
        {"when": "turn2_extra_content", "status": 400, "body": {"error": "extra_content: no"}},
        {"when": "has_stream_options", "status": 422, "body": {"error": "stream_options: no"}},
    ]
    play(scene, GOOD, rules=rules)


# -- the key and the address ---------------------------------------------------------------------------------


def test_the_key_never_shows() -> None:
    """Not in a fault, though the server repeats it, not in what a traceback would print, and not in a repr."""

    async def scene(model: OpenAIModel, server: Replay, _: FakeClock) -> None:
        failure = await fail(model)
        assert "sk-secret" not in f"{failure} {failure.detail} {failure.__cause__} {failure.__context__} {model!r}"
        assert (failure.kind, failure.status) == (FaultKind.AUTH, 401)
        assert "Bearer sk-secret" in server.heads[0]

    play(scene, {"status": 401, "body": {"error": "sk-secret is not known"}}, key="sk-secret")


@pytest.mark.parametrize("key", ["sk-企鹅", "sk-a\nb"])
def test_a_key_that_cannot_be_sent(key: str) -> None:
    """Such a key is named as the mistake before anything is asked, without being shown."""
    with pytest.raises(ConfigError) as caught:
        OpenAIModel("http://x/v1", key, "m", timeout=1, clock=FakeClock(), on_mend=pytest.fail)
    assert key not in str(caught.value)


def test_no_key_no_header() -> None:
    """A local server without a key is not sent an empty one."""

    async def scene(model: OpenAIModel, server: Replay, _: FakeClock) -> None:
        await collect(model, ASK)
        assert "authorization" not in server.heads[0].lower()

    play(scene, GOOD, key="")


@pytest.mark.parametrize(
    ("base", "whole"),
    [
        ("https://h/v1", "https://h/v1/chat/completions"),
        (" https://h/v1/ ", "https://h/v1/chat/completions"),
        ("https://h", "https://h/chat/completions"),
        ("https://h/api/v3/chat/completions", "https://h/api/v3/chat/completions"),
        ("https://h/deployments/d?api-version=1", "https://h/deployments/d/chat/completions?api-version=1"),
    ],
)
def test_address(base: str, whole: str) -> None:
    """A base URL and a whole one both work; not every base ends in /v1."""
    assert str(endpoint(base)) == whole


@pytest.mark.parametrize("url", ["", "h/v1", "ftp://h/v1", "http://", "http://[::1/v1"])
def test_an_address_that_is_none(url: str) -> None:
    """A wrong address ends in one sentence, when the model is built."""
    with pytest.raises(ConfigError, match="URL"):
        endpoint(url)


def test_proxy_from_the_environment() -> None:
    """HTTP_PROXY is honoured: a name that no resolver knows is asked for at the proxy."""

    async def scene(_: OpenAIModel, server: Replay, __: FakeClock) -> None:
        code = (
            "import asyncio, tests.test_model_client as t\n"
            "async def main():\n"
            "    clock = t.FakeClock()\n"
            "    m = t.OpenAIModel('http://model.invalid/v1', 'k', 'm', timeout=9, clock=clock, on_mend=print)\n"
            "    assert (await t.collect(m, t.ASK))[1].text == 'good'\n"
            "    await m.close()\n"
            "asyncio.run(main())\n"
        )
        kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        environment = kept | {"HTTP_PROXY": server.url.removesuffix("/v1"), "PYTHONPATH": os.pathsep.join(sys.path)}
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, env=environment, stderr=subprocess.PIPE
        )
        _out, errors = await child.communicate()
        assert (child.returncode, errors) == (0, b"")
        assert server.heads[0].startswith("POST http://model.invalid/v1/chat/completions ")

    play(scene, GOOD)
