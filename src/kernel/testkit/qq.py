"""A fake QQ: connects to a bot as NapCat does, by reverse WebSocket, and lives in a small world."""

import asyncio
import json
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, assert_never

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from kernel.testkit.actions import Actions, Result
from kernel.testkit.log import Log
from kernel.testkit.segments import Segment, at_segment, segments_of
from kernel.testkit.world import Event, Sent, World

INTERVAL = 30_000
"""Milliseconds between heartbeats, as they announce; they come when a test sends one."""


@dataclass(frozen=True, slots=True)
class ApiCall:
    """An API call of the bot. `at` is seconds of the world's monotonic clock."""

    action: str
    params: Mapping[str, Any]
    at: float


@dataclass(frozen=True, slots=True)
class _Scripted:
    result: Result
    delivered: bool


class FakeQQ:
    """`async with FakeQQ("ws://127.0.0.1:8080/onebot/v11/ws") as qq:` and speak to the bot.

    `world` is shared by two connections of one account; `stamp` is added to every event.
    """

    def __init__(
        self,
        url: str,
        *,
        account: int = 10000,
        token: str | None = None,
        world: World | None = None,
        stamp: Mapping[str, Any] | None = None,
    ) -> None:
        self.url = url
        self.world = world or World(account)
        self.calls: Log[ApiCall] = Log()
        self._token = token
        self._stamp = dict(stamp or {})
        self._actions = Actions(self.world)
        self._once: dict[str, deque[_Scripted]] = {}
        self._always: dict[str, _Scripted] = {}
        self._holds: dict[str, asyncio.Event] = {}
        self._delays: dict[str, float] = {}
        self._socket: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._late: set[asyncio.Task[None]] = set()

    # -- the connection --------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect, or connect again. Raises websockets' InvalidStatus when the bot refuses."""
        await self.close()
        headers = {"X-Self-ID": str(self.world.account), "X-Client-Role": "Universal"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        self._socket = await connect(
            self.url,
            additional_headers=headers,
            user_agent_header="OneBot/11",
            compression=None,
            proxy=None,
            ping_interval=None,
            max_size=None,
        )
        self._reader = asyncio.create_task(self._read(self._socket))
        await self.raw_event(self.world.event("meta_event", meta_event_type="lifecycle", sub_type="connect"))

    async def close(self) -> None:
        """Close politely. Raises what went wrong in here meanwhile: a test must not miss it."""
        for answer in self._late:
            answer.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)
        if self._socket is not None:
            await self._socket.close()
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader

    def drop(self) -> None:
        """Cut the line, without a word to the bot."""
        assert self._socket is not None, "not connected"
        self._socket.transport.abort()

    @property
    def connected(self) -> bool:
        return self._reader is not None and not self._reader.done()

    async def wait_closed(self, timeout: float = 10.0) -> None:
        """Until the connection has ended, whoever ended it."""
        assert self._reader is not None, "not connected"
        async with asyncio.timeout(timeout):
            await asyncio.wait({self._reader})

    # -- what people do --------------------------------------------------------------------------------------

    async def group_says(
        self,
        group: int,
        user: int,
        message: str | Sequence[Segment],
        *,
        at_bot: bool = True,
        role: str | None = None,
    ) -> int:
        """The message's id. A newcomer joins with this `role`; for a known member only the event claims it."""
        typed = f" {message}" if at_bot and isinstance(message, str) else message
        mention = [at_segment(self.world.account)] if at_bot else []
        segments = [*mention, *segments_of(typed, plain=True)]
        return await self._say(self.world.group_message(group, user, segments, role=role))

    async def private_says(
        self,
        user: int,
        message: str | Sequence[Segment],
        *,
        kind: Literal["friend", "temp", "stranger"] = "friend",
        group: int | None = None,
    ) -> int:
        """The message's id. `group` is where a `temp` chat was opened from."""
        segments = segments_of(message, plain=True)
        match kind:
            case "friend":
                event = self.world.friend_message(user, segments)
            case "temp":
                event = self.world.temp_message(user, segments, group)
            case "stranger":
                event = self.world.stranger_message(user, segments)
            case _:
                assert_never(kind)
        return await self._say(event)

    async def notice(self, fields: Mapping[str, Any]) -> None:
        """Something happened: `{"notice_type": "group_increase", …}`."""
        await self.raw_event(self.world.event("notice", **fields))

    async def heartbeat(self, *, online: bool = True, interval: int = INTERVAL) -> None:
        """The socket lives; QQ itself may be offline."""
        self.world.online = online
        status = {"online": online, "good": True}
        event = self.world.event("meta_event", meta_event_type="heartbeat", status=status, interval=interval)
        await self.raw_event(event)

    async def raw_event(self, event: Mapping[str, Any]) -> None:
        """Send an event as it is, but for the stamp."""
        await self.raw_frame(json.dumps({**event, **self._stamp}, ensure_ascii=False))

    async def raw_frame(self, frame: str) -> None:
        """Send any text, JSON or not."""
        assert self._socket is not None, "not connected"
        await self._socket.send(frame)

    async def _say(self, event: Event) -> int:
        await self.raw_event(event)
        number: int = event["message_id"]
        return number

    # -- what the bot did ------------------------------------------------------------------------------------

    @property
    def sent(self) -> Log[Sent]:
        """All messages of the bot, in order."""
        return self.world.sent

    async def wait_sent(self, n: int = 1, *, to: str | None = None, timeout: float = 10.0) -> list[Sent]:
        """The next `n` messages (to `group:ID` or `private:ID`) that no earlier wait has returned."""
        return await self.sent.take(n, lambda sent: to is None or sent.chat == to, timeout)

    async def wait_call(self, action: str, *, timeout: float = 10.0) -> ApiCall:
        """The next call of this action that no earlier wait has returned; it may still be unanswered."""
        [call] = await self.calls.take(1, lambda call: call.action == action, timeout)
        return call

    # -- what goes wrong -------------------------------------------------------------------------------------

    def answer(
        self,
        action: str,
        *,
        retcode: int = 0,
        wording: str = "",
        status: str | None = None,
        data: object = None,
        delivered: bool = False,
        always: bool = False,
    ) -> None:
        """Give the next call of this action (or `always`, every one) this answer.

        The action is not performed, unless `delivered`: NapCat says 1200 of messages that did arrive, too.
        """
        status = status or ("failed" if retcode else "ok")
        scripted = _Scripted(Result(status, retcode, data, wording), delivered)
        if always:
            self._always[action] = scripted
        else:
            self._once.setdefault(action, deque()).append(scripted)

    def hold(self, action: str) -> asyncio.Event:
        """Perform calls of this action, but leave them without an answer until the event is set."""
        hold = self._holds[action] = asyncio.Event()
        return hold

    def delay(self, action: str, seconds: float) -> None:
        """Answer calls of this action so much later, by the world's clock; 0 ends it."""
        self._delays[action] = seconds

    # -- the wire --------------------------------------------------------------------------------------------

    async def _read(self, socket: ClientConnection) -> None:
        try:
            with suppress(ConnectionClosed):
                async for frame in socket:
                    await self._take(socket, frame)
        finally:
            await socket.close()

    async def _take(self, socket: ClientConnection, frame: str | bytes) -> None:
        request = _parsed(frame)
        if request is None:
            await _send(socket, Result("failed", 1400, None, "json解析失败,请检查数据格式"), {})
            return
        action, params = str(request.get("action")), mapping_of(request.get("params"))
        result = self._result(action, params)
        self.calls.append(ApiCall(action, params, self.world.clock.monotonic()))
        hold = self._holds.get(action)
        seconds = self._delays.get(action, 0.0)
        if seconds or (hold is not None and not hold.is_set()):
            late = asyncio.create_task(self._answer_late(socket, result, request, hold, seconds))
            self._late.add(late)
            late.add_done_callback(self._late.discard)
        else:
            await _send(socket, result, request)

    def _result(self, action: str, params: Mapping[str, Any]) -> Result:
        queue = self._once.get(action)
        scripted = queue.popleft() if queue else self._always.get(action)
        if scripted is None:
            return self._actions.perform(action, params)
        if scripted.delivered:
            self._actions.perform(action, params)
        return scripted.result

    async def _answer_late(
        self,
        socket: ClientConnection,
        result: Result,
        request: Mapping[str, Any],
        hold: asyncio.Event | None,
        seconds: float,
    ) -> None:
        if seconds:
            await self.world.clock.sleep(seconds)
        if hold is not None:
            await hold.wait()
        with suppress(ConnectionClosed):  # nobody is there any more to be told
            await _send(socket, result, request)


async def _send(socket: ClientConnection, result: Result, request: Mapping[str, Any]) -> None:
    """The echo goes back untouched, whatever JSON value it is."""
    echo = {"echo": request["echo"]} if "echo" in request else {}
    answer = {
        "status": result.status,
        "retcode": result.retcode,
        "data": result.data,
        "message": result.wording,
        "wording": result.wording,
        **echo,
        "stream": "normal-action",
    }
    await socket.send(json.dumps(answer, ensure_ascii=False))


def mapping_of(value: object) -> Mapping[str, Any]:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def _parsed(frame: str | bytes) -> Mapping[str, Any] | None:
    try:
        request = json.loads(frame)
    except ValueError:
        return None
    return request if isinstance(request, dict) else None
