"""A model in the same process that says what the script says, and checks everything it is asked."""

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from typing import Any, assert_never

from kernel.conversation import Exchange, Turn
from kernel.errors import ModelFault
from kernel.ports import Chunk, Reply, Request, RequestedCall
from kernel.testkit.log import Log
from kernel.tools import NAME

Scripted = Reply | ModelFault | asyncio.Event | Callable[[Request], Reply]
"""An answer, a failure, a gate that holds the next answer until it is set, or an answer that depends."""


class BrokenRequest(AssertionError):
    """The kernel asked the model something that it must never ask."""


class ScriptedModel:
    """`kernel.ports.Model` over a queue. Raises BrokenRequest for a broken request and for an empty queue."""

    name = "scripted"

    def __init__(self, *script: Scripted) -> None:
        self.requests: Log[Request] = Log()
        self.closed = False
        self._script = deque(script)

    def then(self, *script: Scripted) -> None:
        """Say this after the rest."""
        self._script.extend(script)

    async def ask(self, request: Request) -> AsyncGenerator[Chunk | Reply, None]:
        self.requests.append(request)
        if broken := list(faults_of(request)):
            raise BrokenRequest("; ".join(broken))
        reply = await self._next(request)
        if reply.text:
            yield Chunk(reply.text)
        yield reply

    async def close(self) -> None:
        self.closed = True

    async def _next(self, request: Request) -> Reply:
        while self._script:
            match self._script.popleft():
                case Reply() as reply:
                    return reply
                case ModelFault() as fault:
                    raise fault
                case asyncio.Event() as gate:
                    await gate.wait()
                case answer if callable(answer):
                    return answer(request)
                case other:
                    assert_never(other)
        raise BrokenRequest(f"the script is empty, but the model was asked: {request.turns[-1].question}")


def calling(*calls: tuple[str, Mapping[str, Any] | str], text: str = "") -> Reply:
    """A reply that calls tools: names with arguments, or with the raw string that a bad model would write."""
    return Reply(text, tuple(_requested(name, arguments) for name, arguments in calls), finish="tool_calls")


def _requested(name: str, arguments: Mapping[str, Any] | str) -> RequestedCall:
    if not isinstance(arguments, str):
        return RequestedCall(name, json.dumps(arguments, ensure_ascii=False), arguments)
    try:
        value = json.loads(arguments)
    except ValueError:
        value = None
    return RequestedCall(name, arguments, value if isinstance(value, dict) else None)


# -- what no request may be ----------------------------------------------------------------------------------


def faults_of(request: Request) -> Iterator[str]:
    """Everything that is wrong with a request; a sound one has nothing."""
    yield from _names(tool.name for tool in request.tools)
    if not request.turns or not request.turns[-1].inbounds:
        yield "there is no current question"
    yield from _twice("turn", (turn.id for turn in request.turns))
    yield from _twice("call", (exchange.call.id for turn in request.turns for exchange in _calls(turn)))
    for turn in request.turns:
        yield from _turn_faults(turn)
    for turn in request.turns[:-1]:
        if turn.ending is None:
            yield f"turn {turn.id} is in the history and still open"


def _turn_faults(turn: Turn) -> Iterator[str]:
    if [step.number for step in turn.steps] != list(range(len(turn.steps))):
        yield f"turn {turn.id} is not whole: its steps are {[step.number for step in turn.steps]}"
    for exchange in _calls(turn):
        if not exchange.settled:
            yield f"call {exchange.call.id} ({exchange.call.name}) of turn {turn.id} has no result"
        if not 1 <= len(exchange.call.id) <= 64:
            yield f"call id {exchange.call.id!r} of turn {turn.id} has no length that servers take"


def _calls(turn: Turn) -> Iterator[Exchange]:
    for step in turn.steps:
        yield from step.exchanges


def _names(names: Iterable[str]) -> Iterator[str]:
    shown = list(names)
    yield from _twice("tool", shown)
    for name in shown:
        if not NAME.fullmatch(name):
            yield f"tool name {name!r} would make a server refuse the request"


def _twice(what: str, ids: Iterable[str]) -> Iterator[str]:
    for ident, times in Counter(ids).items():
        if times > 1:
            yield f"{what} {ident} stands there {times} times"
