"""A language model behind real HTTP that says what the script says and refuses what real servers refuse."""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from types import TracebackType
from typing import Any, Self, assert_never

from kernel.adapters.embedded.clock import SystemClock
from kernel.testkit.log import Log
from kernel.testkit.server.answers import EVENTS, JSON, Answer, Fail, Hang, Raw, Say, error, failed, said
from kernel.testkit.server.strict import faults_of
from kernel.testkit.server.wire import HttpRequest, HttpResponse, HttpServer

__all__ = ["Answer", "Fail", "FakeModel", "Hang", "Raw", "Say"]

Route = Callable[[dict[str, Any]], Answer | str | None]
"""Picks an answer by what is asked; a string is said; None leaves it to the default."""


class FakeModel:
    """`async with FakeModel() as model:` and point an OpenAI client at `model.url`.

    A request takes the next scripted answer; with none left, what the route of `on` says; without one, its own
    last question. `requests` holds what was asked, `refused` the words of the 400s it gave: a test of a client
    that behaves ends with `assert model.refused == []`.
    """

    def __init__(self, *, port: int = 0, delay: float = 0.0, record: bool = True) -> None:
        """`delay` seconds before each answer; `record=False` forgets requests, for long benches."""
        self.requests: Log[dict[str, Any]] = Log()
        self.refused: list[str] = []
        self.url = ""
        self._port = port
        self._delay = delay
        self._record = record
        self._script: deque[Answer | asyncio.Event] = deque()
        self._route: Route = lambda _: None
        self._ids = count(1)
        self._server = HttpServer(self._handle)

    async def __aenter__(self) -> Self:
        port = await self._server.open(self._port)
        self.url = f"http://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.close()

    # -- the script ------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        self._script.append(Say(text))

    def call(self, *calls: tuple[str, Mapping[str, Any] | str], text: str = "") -> None:
        """Call tools: `("time_now", {"zone": "UTC"})`, or the raw string that a bad model would write."""
        self._script.append(Say(text, calls))

    def fail(self, status: int, body: object = None, headers: Mapping[str, str] | None = None) -> None:
        """An HTTP error; without a body, OpenAI's own form of one."""
        self._script.append(Fail(status, body, headers or {}))

    def raw(
        self, *pieces: bytes, status: int = 200, headers: Mapping[str, str] | None = None, cut: bool = False
    ) -> None:
        """A body of exactly these bytes, sent as events unless the headers say otherwise."""
        self._script.append(Raw(pieces, status, headers or EVENTS, cut))

    def hang(self) -> None:
        """Take the next request and never answer it."""
        self._script.append(Hang())

    def gate(self) -> asyncio.Event:
        """Hold the answer that comes next until the event is set."""
        gate = asyncio.Event()
        self._script.append(gate)
        return gate

    def on(self, route: Route) -> None:
        """Answer by content whenever the script is empty: for many chats at once."""
        self._route = route

    async def wait_requests(self, count: int = 1, timeout: float = 10.0) -> list[dict[str, Any]]:
        """The next `count` requests that no earlier wait has returned."""
        return await self.requests.take(count, timeout=timeout)

    # -- the server ------------------------------------------------------------------------------------------

    async def _handle(self, http: HttpRequest) -> HttpResponse | None:
        if (http.method, http.path) != ("POST", "/v1/chat/completions"):
            body = error(f"Invalid URL ({http.method} {http.path})")
            return HttpResponse(404, (json.dumps(body).encode(),), JSON)
        request = _parsed(http.body)
        if self._record and isinstance(request, dict):
            self.requests.append(request)
        fault = next(faults_of(request), None)
        if fault is not None:
            self.refused.append(fault.message)
            return failed(Fail(400, error(fault.message, param=fault.param)))
        answer = await self._next(request)
        if self._delay:
            await SystemClock().sleep(self._delay)
        return self._rendered(answer, request)

    async def _next(self, request: dict[str, Any]) -> Answer:
        """The answer is taken when the request arrives: a gate holds it, and nobody else gets it."""
        gates: list[asyncio.Event] = []
        while self._script and isinstance(self._script[0], asyncio.Event):
            gates.append(self._script[0])
            self._script.popleft()
        step = self._script.popleft() if self._script else self._routed(request)
        assert not isinstance(step, asyncio.Event)
        for gate in gates:
            await gate.wait()
        return step

    def _routed(self, request: dict[str, Any]) -> Answer:
        routed = self._route(request)
        answer = f"echo: {last_question(request)}" if routed is None else routed
        return Say(answer) if isinstance(answer, str) else answer

    def _rendered(self, answer: Answer, request: dict[str, Any]) -> HttpResponse | None:
        match answer:
            case Say():
                return said(answer, request, self._ids)
            case Fail():
                return failed(answer)
            case Raw(pieces, status, headers, cut):
                return HttpResponse(status, pieces, headers, cut)
            case Hang():
                return None
            case _:
                assert_never(answer)


def _parsed(body: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(body)
    except ValueError:
        return None


def last_question(request: Mapping[str, Any]) -> str:
    """The text of the last user message, without its pictures."""
    content = next(message["content"] for message in reversed(request["messages"]) if message["role"] == "user")
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")
