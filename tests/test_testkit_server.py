"""FakeModel: real HTTP, scripted answers, and 400 for what real servers refuse."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import pytest

from kernel.testkit import Fail, FakeModel, Say, settle

Request = dict[str, Any]


def request_of(text: str = "hi", **more: Any) -> Request:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


@asynccontextmanager
async def fake() -> AsyncIterator[tuple[FakeModel, httpx.AsyncClient]]:
    async with FakeModel() as model, httpx.AsyncClient(base_url=model.url, trust_env=False, verify=False) as client:
        yield model, client


async def post(client: httpx.AsyncClient, request: object) -> httpx.Response:
    return await client.post("/chat/completions", json=request)


def message_of(response: httpx.Response) -> dict[str, Any]:
    message: dict[str, Any] = response.json()["choices"][0]["message"]
    return message


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    *lines, done = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert done == "[DONE]"
    return [json.loads(line) for line in lines]


# -- answers -------------------------------------------------------------------------------------------------


def test_text_and_calls_come_as_one_document() -> None:
    """The answer has OpenAI's shape; arguments are strings, a raw one untouched; ids never repeat."""

    async def story() -> None:
        async with fake() as (model, client):
            model.say("hello")
            model.call(("time_now", {"zone": "UTC"}), ("x", '{"half'), text="wait")
            plain = (await post(client, request_of())).json()
            assert plain["object"] == "chat.completion"
            assert plain["choices"][0]["finish_reason"] == "stop"
            assert plain["choices"][0]["message"] == {"role": "assistant", "content": "hello"}
            assert plain["usage"]["total_tokens"] == sum(
                plain["usage"][part] for part in ("prompt_tokens", "completion_tokens")
            )
            response = await post(client, request_of())
            assert response.json()["choices"][0]["finish_reason"] == "tool_calls"
            calls = message_of(response)["tool_calls"]
            assert [call["function"] for call in calls] == [
                {"name": "time_now", "arguments": '{"zone": "UTC"}'},
                {"name": "x", "arguments": '{"half'},
            ]
            assert len({call["id"] for call in calls}) == 2
            assert message_of(response)["content"] == "wait"
            assert model.refused == []

    asyncio.run(story())


def test_a_stream_says_the_same_in_pieces() -> None:
    """Deltas put together give the same text and calls; usage comes last, if asked for."""

    async def story() -> None:
        async with fake() as (model, client):
            text, zone = "你好，" * 10, {"zone": "Asia/Shanghai", "long": "x" * 50}
            model.call(("time_now", zone), ("y", {}), text=text)
            response = await post(client, request_of(stream=True, stream_options={"include_usage": True}))
            assert response.headers["content-type"].startswith("text/event-stream")
            *events, last = events_of(response)
            assert last["choices"] == []
            assert last["usage"]["prompt_tokens"] > 0
            deltas = [event["choices"][0]["delta"] for event in events]
            assert "".join(delta.get("content") or "" for delta in deltas) == text
            pieces = [call for delta in deltas for call in delta.get("tool_calls", ())]
            raw = ["".join(p["function"]["arguments"] for p in pieces if p["index"] == at) for at in (0, 1)]
            assert [json.loads(arguments) for arguments in raw] == [zone, {}]
            assert [piece["function"]["name"] for piece in pieces if "id" in piece] == ["time_now", "y"]
            assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
            assert len(deltas) > 10

    asyncio.run(story())


def test_no_usage_unless_asked() -> None:
    """A stream without `include_usage` has none."""

    async def story() -> None:
        async with fake() as (_, client):
            events = events_of(await post(client, request_of(stream=True)))
            assert all("usage" not in event for event in events)

    asyncio.run(story())


def test_failures_go_out_as_they_are_scripted() -> None:
    """Status, body and headers are the test's; the default body is an error as OpenAI writes it."""

    async def story() -> None:
        async with fake() as (model, client):
            model.fail(429, {"error": {"message": "slow down"}}, {"retry-after": "7"})
            model.fail(502, "<html>bad gateway</html>")
            model.fail(500)
            limited = await post(client, request_of())
            assert (limited.status_code, limited.headers["retry-after"]) == (429, "7")
            assert limited.json() == {"error": {"message": "slow down"}}
            gateway = await post(client, request_of())
            assert (gateway.status_code, gateway.text) == (502, "<html>bad gateway</html>")
            assert gateway.headers["content-type"] == "text/plain"
            down = await post(client, request_of())
            assert (down.status_code, down.json()["error"]["type"]) == (500, "server_error")
            assert model.refused == []

    asyncio.run(story())


def test_raw_bytes_arrive_untouched() -> None:
    """`raw` is the body, byte for byte, with the status and headers given; events by default."""

    async def story() -> None:
        async with fake() as (model, client):
            model.raw(b"data: {\xe4\xbd", b"", b"\xa0}\r\n")
            model.raw(b"<html>", status=599, headers={"content-type": "text/html"})
            model.raw()
            torn = await post(client, request_of())
            assert torn.content == b"data: {\xe4\xbd\xa0}\r\n"
            assert torn.headers["content-type"].startswith("text/event-stream")
            odd = await post(client, request_of())
            assert (odd.status_code, odd.headers["content-type"], odd.content) == (599, "text/html", b"<html>")
            assert (await post(client, request_of())).content == b""

    asyncio.run(story())


def test_a_cut_body_breaks_off() -> None:
    """`cut` ends the connection inside the body, which no client can take for a whole one."""

    async def story() -> None:
        async with fake() as (model, client):
            model.raw(b'data: {"choices": [', cut=True)
            with pytest.raises(httpx.RemoteProtocolError):
                await post(client, request_of())
            model.say("back")
            assert message_of(await post(client, request_of()))["content"] == "back"

    asyncio.run(story())


def test_a_hanging_request_holds_up_nobody_else() -> None:
    """No answer comes to the one; others are served; the one may go away."""

    async def story() -> None:
        async with fake() as (model, client):
            model.hang()
            model.say("for the second")
            hanging = asyncio.create_task(post(client, request_of("first")))
            await model.wait_requests()
            assert message_of(await post(client, request_of("second")))["content"] == "for the second"
            assert not hanging.done()
            hanging.cancel()
            await settle()
            assert message_of(await post(client, request_of("third")))["content"] == "echo: third"

    asyncio.run(story())


def test_a_gate_holds_one_answer_for_the_one_who_asked_first() -> None:
    """Behind the gate the answer waits for its own request, though others come and go."""

    async def story() -> None:
        async with fake() as (model, client):
            gate = model.gate()
            model.say("first")
            model.say("second")
            held = asyncio.create_task(post(client, request_of("a")))
            [request] = await model.wait_requests()
            assert request["messages"][0]["content"] == "a"
            assert message_of(await post(client, request_of("b")))["content"] == "second"
            assert not held.done()
            gate.set()
            assert message_of(await held)["content"] == "first"

    asyncio.run(story())


def test_a_route_answers_by_content_when_the_script_is_empty() -> None:
    """Script first, then the route; a string is said, an answer given, and None echoes."""

    async def story() -> None:
        answers: dict[str, Say | Fail | str] = {"a": "from a", "b": Fail(503), "c": Say(calls=(("x", {}),))}

        async with fake() as (model, client):
            model.on(lambda request: answers.get(request["messages"][-1]["content"]))
            model.say("scripted")
            assert message_of(await post(client, request_of("a")))["content"] == "scripted"
            assert message_of(await post(client, request_of("a")))["content"] == "from a"
            assert (await post(client, request_of("b"))).status_code == 503
            assert message_of(await post(client, request_of("c")))["tool_calls"][0]["function"]["name"] == "x"
            assert message_of(await post(client, request_of("d")))["content"] == "echo: d"

    asyncio.run(story())


def test_the_echo_leaves_pictures_out() -> None:
    """The default answer is the text of the last question, in whatever form it came."""
    content = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "text", "text": " here"},
    ]
    earlier = {"role": "user", "content": "earlier"}
    request = {"model": "m", "messages": [earlier, {"role": "user", "content": content}]}

    async def story() -> None:
        async with fake() as (_, client):
            assert message_of(await post(client, request))["content"] == "echo: look here"

    asyncio.run(story())


# -- what is refused -----------------------------------------------------------------------------------------

TOOL = {"type": "function", "function": {"name": "time_now", "parameters": {"type": "object", "properties": {}}}}


def called(*ids: str) -> dict[str, Any]:
    function = {"name": "time_now", "arguments": "{}"}
    calls = [{"id": ident, "type": "function", "function": deepcopy(function)} for ident in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(ident: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": ident, "content": "noon"}


def history() -> Request:
    """Two rounds of tools, all paired: the request that every rule below breaks in one place."""
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "time?"},
        called("a", "b"),
        result("b"),
        result("a"),
        called("a"),
        result("a"),
        {"role": "assistant", "content": "noon"},
        {"role": "user", "content": "thanks"},
    ]
    return {"model": "m", "messages": messages, "tools": [deepcopy(TOOL)]}


def broken(change: Callable[[Request], object]) -> Request:
    request = history()
    change(request)
    return request


def at(place: int, **fields: Any) -> Callable[[Request], object]:
    return lambda request: request["messages"][place].update(fields)


def in_call(**fields: Any) -> Callable[[Request], object]:
    return lambda request: request["messages"][2]["tool_calls"][0].update(fields)


def in_tool(**fields: Any) -> Callable[[Request], object]:
    return lambda request: request["tools"][0]["function"].update(fields)


RULES: dict[str, tuple[Callable[[Request], object], str]] = {
    "no results": (lambda r: r["messages"].__delitem__(slice(3, 5)), "did not have response messages: a, b"),
    "one result missing": (lambda r: r["messages"].pop(3), "did not have response messages: b"),
    "calls at the end": (lambda r: r["messages"].append(called("z")), "did not have response messages: z"),
    "something between": (
        lambda r: r["messages"].insert(4, {"role": "user", "content": "?"}),
        "did not have response messages: a",
    ),
    "orphan": (lambda r: r["messages"].insert(2, result("a")), "must be a response to a preceeding message"),
    "orphan after text": (lambda r: r["messages"].append(result("a")), "must be a response to a preceeding"),
    "stranger's result": (lambda r: r["messages"].insert(5, result("q")), "'q' not found in 'tool_calls'"),
    "second result": (lambda r: r["messages"].insert(5, result("a")), "Duplicate value for 'tool_call_id' of 'a'"),
    "two calls of one id": (at(2, **called("a", "a")), "duplicate id 'a'"),
    "call without id": (in_call(id=None), "Missing required parameter: 'messages[2].tool_calls[0].id'"),
    "call with empty id": (in_call(id=""), "empty string"),
    "call with long id": (in_call(id="i" * 65), "string too long. Expected a string with maximum length 64"),
    "call with numeric id": (in_call(id=7), "expected a string, but got a number instead"),
    "call without type": (in_call(type=None), "Missing required parameter: 'messages[2].tool_calls[0].type'"),
    "call of a bad name": (in_call(function={"name": "报时", "arguments": "{}"}), "does not match pattern"),
    "call without name": (in_call(function={"arguments": "{}"}), "tool_calls[0].function.name'"),
    "arguments as object": (
        in_call(function={"name": "x", "arguments": {}}),
        "function.arguments': expected a string, but got an object instead",
    ),
    "arguments missing": (in_call(function={"name": "x"}), "expected a string, but got null instead"),
    "no calls in tool_calls": (at(2, tool_calls=[]), "'messages[2].tool_calls': empty array"),
    "result without id": (at(3, tool_call_id=None), "Missing required parameter: 'messages[3].tool_call_id'"),
    "unknown role": (at(0, role="bot"), "Invalid value: 'bot'. Supported values are: 'system'"),
    "message is no object": (lambda r: r["messages"].append("hi"), "expected an object, but got a string"),
    "user content missing": (at(1, content=None), "Invalid value for 'content': expected a string, got null"),
    "tool content missing": (at(3, content=None), "Invalid value for 'content': expected a string, got null"),
    "assistant says nothing": (at(7, content=None), "Invalid value for 'content': expected a string, got null"),
    "content is a number": (at(1, content=3), "Invalid value for 'content': expected a string, got a number"),
    "content has no parts": (at(1, content=[]), "'messages[1].content': empty array"),
    "unknown part": (at(1, content=[{"type": "face"}]), "Invalid value: 'face'. Supported values are: 'text'"),
    "part without its field": (at(1, content=[{"type": "text"}]), "Missing required parameter"),
    "no user": (
        lambda r: r.update(messages=[{"role": "system", "content": "x"}]),
        "at least one message with role 'user'",
    ),
    "no messages": (lambda r: r.update(messages=[]), "'messages': empty array"),
    "messages missing": (lambda r: r.pop("messages"), "Missing required parameter: 'messages'"),
    "messages no list": (lambda r: r.update(messages={}), "expected an array, but got an object"),
    "no model": (lambda r: r.pop("model"), "you must provide a model parameter"),
    "empty tools": (lambda r: r.update(tools=[]), "'tools': empty array"),
    "tool of another type": (lambda r: r["tools"][0].update(type="web"), "'tools[0].type': expected 'function'"),
    "tool of a bad name": (in_tool(name="time now"), "'tools[0].function.name': string does not match pattern"),
    "tool of a long name": (in_tool(name="n" * 65), "string too long"),
    "tool twice": (lambda r: r["tools"].append(TOOL), "tool names must be unique, but 'time_now' is not"),
    "tool without schema": (in_tool(parameters=None), "got 'type: \"None\"'"),
    "choice without tools": (
        lambda r: r.update(tools=None, tool_choice="auto"),
        "'tool_choice' is only allowed when 'tools' are specified",
    ),
    "stream options alone": (
        lambda r: r.update(stream_options={"include_usage": True}),
        "only allowed when 'stream' is enabled",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_request_is_refused(rule: str) -> None:
    """400 in the words of the API, kept in `refused`; the script is not used up by it."""
    change, words = RULES[rule]

    async def story() -> None:
        async with fake() as (model, client):
            model.say("still there")
            response = await post(client, broken(change))
            assert response.status_code == 400
            assert response.json()["error"]["type"] == "invalid_request_error"
            assert words in response.json()["error"]["message"]
            assert model.refused == [response.json()["error"]["message"]]
            assert message_of(await post(client, history()))["content"] == "still there"

    asyncio.run(story())


def test_what_is_sound_is_not_refused() -> None:
    """Results in any order, ids used again in a later step, empty text: real servers take these, so it does."""

    async def story() -> None:
        async with fake() as (model, client):
            sound = history()
            sound["messages"][7]["content"] = ""
            sound["messages"][0]["role"] = "developer"
            sound |= {"tool_choice": "auto", "parallel_tool_calls": True, "stream": True}
            sound |= {"stream_options": {"include_usage": True}}
            assert (await post(client, sound)).status_code == 200
            assert model.refused == []
            assert model.requests == [sound]

    asyncio.run(story())


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null"])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    """What is no JSON object is refused in words too."""

    async def story() -> None:
        async with fake() as (model, client):
            response = await client.post("/chat/completions", content=body)
            assert response.status_code == 400
            assert "could not parse the JSON body" in model.refused[0]
            assert model.requests == []

    asyncio.run(story())


def test_other_addresses_are_not_found() -> None:
    """A base URL that is one part off is seen at once, and is no refusal of a request."""

    async def story() -> None:
        async with fake() as (model, client):
            assert (await client.post("/completions", json=request_of())).status_code == 404
            assert (await client.get("/chat/completions")).json()["error"]["message"].startswith("Invalid URL (GET")
            assert (model.refused, model.requests) == ([], [])

    asyncio.run(story())


# -- the server itself ---------------------------------------------------------------------------------------


def test_a_fault_in_the_tests_own_route_is_not_lost() -> None:
    """What a route raises comes out where the server is closed, though the client only saw a broken line."""

    async def story() -> None:
        async with fake() as (model, client):
            model.on(lambda request: str(request["no such key"]))
            with pytest.raises(httpx.RemoteProtocolError):
                await post(client, request_of())

    with pytest.raises(KeyError, match="no such key"):
        asyncio.run(story())


async def spoken(model: FakeModel, *frames: bytes) -> bytes:
    """What the server says on a bare socket until it closes the line."""
    port = int(model.url.split(":")[2].split("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.writelines(frames)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def test_bodies_in_chunks_and_clients_that_ask_first() -> None:
    """HTTP as other clients speak it: chunked bodies, `Expect: 100-continue`, `Connection: close`."""

    async def story() -> None:
        async with FakeModel() as model:
            body = json.dumps(request_of("in two")).encode()
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nConnection: close\r\n"
            parts = (b"5\r\n" + body[:5] + b"\r\n", b"%x\r\n%b\r\n" % (len(body) - 5, body[5:]), b"0\r\n\r\n")
            answer = await spoken(model, head + b"Transfer-Encoding: chunked\r\n\r\n", *parts)
            assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
            assert b"echo: in two" in answer

    asyncio.run(story())


def test_noise_closes_the_line_and_harms_nobody() -> None:
    """What is no HTTP gets no answer; the next client does."""

    async def story() -> None:
        async with fake() as (model, client):
            assert await spoken(model, b"\x16\x03\x01nonsense\r\n\r\n") == b""
            assert (await post(client, request_of())).status_code == 200

    asyncio.run(story())


def test_it_runs_in_a_process_of_its_own() -> None:
    """`python -m kernel.testkit.server` prints its address, answers, and warns of nothing."""
    source = Path(__file__).parent.parent / "src"
    with subprocess.Popen(
        [sys.executable, "-m", "kernel.testkit.server", "--port", "0"],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        url = server.stdout.readline().strip()
        response = httpx.post(f"{url}/chat/completions", json=request_of("alone"), trust_env=False, verify=False)
        assert message_of(response)["content"] == "echo: alone"
        server.terminate()
        assert server.stderr.read() == ""


def test_a_bench_server_keeps_no_requests_and_takes_its_time() -> None:
    """`record=False` forgets what it was asked; `delay` passes before the answer."""

    async def story() -> None:
        async with (
            FakeModel(delay=0.01, record=False) as model,
            httpx.AsyncClient(trust_env=False, verify=False) as client,
        ):
            loop = asyncio.get_running_loop()
            began = loop.time()
            response = await client.post(f"{model.url}/chat/completions", json=request_of())
            assert response.status_code == 200
            assert loop.time() - began >= 0.01
            assert model.requests == []

    asyncio.run(story())
