"""The driver: plays QQ on one reverse WebSocket, as cheaply as it can, and times every reply."""

import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect

ACCOUNT = 10000


class Driver:
    """`async with Driver(url) as driver: await driver.ask(user)` returns the seconds until the reply was sent."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ids: Iterator[int] = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._socket: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        headers = {"X-Self-ID": str(ACCOUNT), "X-Client-Role": "Universal"}
        self._socket = await connect(self._url, additional_headers=headers, compression=None, proxy=None, max_size=None)
        connected = {"meta_event_type": "lifecycle", "sub_type": "connect"}
        await self._post("meta_event", connected)
        self._reader = asyncio.create_task(self._read(self._socket))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._socket is not None
        assert self._reader is not None
        await self._socket.close()
        await self._reader

    async def ask(self, user: int, text: str = "今天天气怎么样，适合出去走走吗？") -> float:
        """Say something in a private chat; one question at a time for each user."""
        done = self._waiting[user] = asyncio.get_running_loop().create_future()
        start = time.perf_counter()
        await self._post(
            "message",
            {
                "message_type": "private",
                "sub_type": "friend",
                "user_id": user,
                "message_id": next(self._ids),
                "message": [{"type": "text", "data": {"text": text}}],
                "raw_message": text,
                "font": 0,
                "sender": {"user_id": user, "nickname": "n"},
            },
        )
        await asyncio.wait_for(done, 60)
        return time.perf_counter() - start

    async def _post(self, kind: str, fields: dict[str, Any]) -> None:
        assert self._socket is not None
        event = {"time": int(time.time()), "self_id": ACCOUNT, "post_type": kind, **fields}
        await self._socket.send(json.dumps(event))

    async def _read(self, socket: ClientConnection) -> None:
        async for frame in socket:
            call = json.loads(frame)
            done = self._waiting.get(int(call["params"].get("user_id", 0)))
            if done is not None and not done.done() and "send" in call["action"]:
                done.set_result(None)
            data = {"message_id": next(self._ids)}
            await socket.send(json.dumps({"status": "ok", "retcode": 0, "data": data, "echo": call.get("echo")}))
