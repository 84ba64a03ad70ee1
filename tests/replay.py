"""A model server that replays recorded answers over real HTTP, and a clock that only moves when told."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

Json = Any

# -- time ----------------------------------------------------------------------------------------------------


class FakeClock:
    """Time that passes in `sleep` and `advance` only, at once."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._time = 0.0
        self._armed: dict[_Timeout, float] = {}

    def now(self) -> float:
        return 1_700_000_000 + self._time

    def monotonic(self) -> float:
        return self._time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)
        await asyncio.sleep(0)

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        return _Timeout(self, None if seconds is None else self._time + seconds)

    def advance(self, seconds: float) -> None:
        self._time += seconds
        for timeout, deadline in self._armed.items():
            timeout.fire_if(deadline <= self._time)

    def arm(self, timeout: "_Timeout", deadline: float) -> None:
        self._armed[timeout] = deadline
        timeout.fire_if(deadline <= self._time)

    def disarm(self, timeout: "_Timeout") -> None:
        self._armed.pop(timeout, None)


class _Timeout(asyncio.Timeout):
    def __init__(self, clock: FakeClock, deadline: float | None) -> None:
        super().__init__(None)
        self._clock = clock
        self._deadline = deadline

    def fire_if(self, due: bool) -> None:
        if due and not self.expired():
            self.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> "_Timeout":
        await super().__aenter__()
        if self._deadline is not None:
            self._clock.arm(self, self._deadline)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._clock.disarm(self)
        return await super().__aexit__(kind, error, trace)


# -- what servers refuse -------------------------------------------------------------------------------------


def _asked(request: Json) -> list[Json]:
    return [message for message in request["messages"] if message["role"] == "assistant"]


def _calls(request: Json) -> list[Json]:
    return [call for message in _asked(request) for call in message.get("tool_calls", [])]


def _calling(request: Json) -> list[Json]:
    return [message for message in _asked(request) if message.get("tool_calls")]


def _unknown_keys(request: Json) -> bool:
    known = {"role", "content", "tool_calls"}, {"id", "type", "function"}, {"name", "arguments"}
    found = _asked(request), _calls(request), [call["function"] for call in _calls(request)]
    return any(item.keys() - keys for keys, items in zip(known, found, strict=True) for item in items)


def _signed(call: Json) -> bool:
    return bool(call.get("extra_content", {}).get("google", {}).get("thought_signature"))


RULES = {
    "has_developer_role": lambda r: any(message["role"] == "developer" for message in r["messages"]),
    "has_strict": lambda r: any("strict" in tool["function"] for tool in r.get("tools", [])),
    "has_parallel_tool_calls": lambda r: "parallel_tool_calls" in r,
    "has_max_completion_tokens": lambda r: "max_completion_tokens" in r,
    "has_max_tokens": lambda r: "max_tokens" in r,
    "has_stream": lambda r: r.get("stream", False),
    "has_stream_options": lambda r: "stream_options" in r,
    "turn2_assistant_content_null": lambda r: any(message.get("content") is None for message in _asked(r)),
    "turn2_assistant_content_empty": lambda r: any(message.get("content") == "" for message in _asked(r)),
    "turn2_unknown_keys": _unknown_keys,
    "turn2_extra_content": lambda r: any("extra_content" in call for call in _calls(r)),
    "turn2_args_not_string": lambda r: any(not isinstance(c["function"]["arguments"], str) for c in _calls(r)),
    "turn2_without_reasoning_content": lambda r: any(not m.get("reasoning_content") for m in _calling(r)),
    "turn2_with_reasoning_content": lambda r: any("reasoning_content" in message for message in _asked(r)),
    "turn2_without_thought_signature": lambda r: bool(_calls(r)) and not any(map(_signed, _calls(r))),
}


def unpaired(messages: Sequence[Json]) -> str:
    """What every strict server checks: each call has its one result right behind it, and nothing else has."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                return f"orphan {message['tool_call_id']}"
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            return f"no result for {waiting}"
        for call in message.get("tool_calls", []):
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) or not isinstance(arguments, dict):
                return f"call {call}"
            waiting.append(call["id"])
    return f"no result for {waiting}" if waiting else ""


# -- the server ----------------------------------------------------------------------------------------------


class Replay:
    """`async with Replay(answers, ...) as server`: the n-th request that no rule refuses gets the n-th answer.

    After the last answer it is repeated. An answer has the shape of a case: status, headers, and one of body,
    body_text, sse; a piece of sse may also be `{"hang": true}`: nothing more comes until the client hangs up.
    """

    def __init__(
        self, answers: Sequence[Mapping[str, Json]], clock: FakeClock, rules: Sequence[Mapping[str, Json]] = ()
    ) -> None:
        self.requests: list[Json] = []
        self.heads: list[str] = []
        self.hung_up = asyncio.Event()
        self.hanging = asyncio.Semaphore(0)
        self._answers = answers
        self._clock = clock
        self._rules = rules
        self._answered = 0

    async def __aenter__(self) -> "Replay":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1_000)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
            request = json.loads(await reader.readexactly(int(length[1]) if length else 0))
            self.heads.append(head)
            self.requests.append(request)
            await self._answer(self._choose(request), reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _choose(self, request: Json) -> Mapping[str, Json]:
        broken = unpaired(request["messages"])
        if broken:
            return {"status": 400, "body": {"error": {"message": f"tool call result: {broken}"}}}
        for rule in self._rules:
            if RULES[rule["when"]](request):
                return rule
        self._answered += 1
        return self._answers[min(self._answered, len(self._answers)) - 1]

    async def _answer(
        self, answer: Mapping[str, Json], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        headers = {"content-type": "application/json"} | answer.get("headers", {}) | {"connection": "close"}
        sse = answer.get("sse")
        body = answer["body_text"] if "body_text" in answer else json.dumps(answer.get("body"), ensure_ascii=False)
        data = b"" if sse is not None else body.encode()
        headers |= {"content-length": str(len(data))} if sse is None else {"transfer-encoding": "chunked"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 {answer.get('status', 200)} X\r\n{lines}\r\n".encode() + data)
        for piece in sse or ():
            await self._piece(piece, reader, writer)
        if sse is not None:
            writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _piece(self, piece: Json, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match piece:
            case str():
                await _chunk(writer, piece.encode())
            case {"split_utf8": texts}:
                data = "".join(texts).encode()
                for start in range(0, len(data), 5):
                    await _chunk(writer, data[start : start + 5])
            case {"sleep": seconds}:
                await _turns()
                self._clock.advance(seconds)
                await _turns()
            case {"drop": True}:
                await _turns()
                writer.transport.abort()
            case {"hang": True}:
                self.hanging.release()
                await reader.read()
                self.hung_up.set()


async def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
    await writer.drain()
    await asyncio.sleep(0)


async def _turns() -> None:
    """Turns of the loop in which the client can read what has been sent."""
    for _ in range(50):
        await asyncio.sleep(0)
