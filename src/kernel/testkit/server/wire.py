"""Just enough HTTP/1.1 to serve a client exactly the bytes that a test wants it to see."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request, whole. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """Several pieces go out as chunks. `cut` breaks the connection after them, in the middle of the body."""

    status: int
    pieces: Sequence[bytes]
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False


Handler = Callable[[HttpRequest], Awaitable[HttpResponse | None]]
"""Answers a request; None leaves the client without an answer until it goes away."""


class HttpServer:
    """Serves on loopback; owns its connections."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self, port: int) -> int:
        """The port it listens on; 0 takes a free one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, backlog=1000)
        listening: int = self._server.sockets[0].getsockname()[1]
        return listening

    async def close(self) -> None:
        """Cut what is open. Raises what a handler raised: a test must not miss it."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        endings = await asyncio.gather(*self._connections, return_exceptions=True)
        for crash in (ending for ending in endings if isinstance(ending, Exception)):
            raise crash

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, ValueError):  # the client's affair
                while await self._exchange(reader, writer):
                    pass
            self._connections.discard(task)  # a crashed one stays, for `close`
        except asyncio.CancelledError:
            writer.transport.abort()  # nobody waits for what is still in the buffer
            raise
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _exchange(self, reader: StreamReader, writer: StreamWriter) -> bool:
        """One request and its answer; False when the connection has had its last."""
        request = await _read(reader, writer)
        response = await self._handler(request)
        if response is None:
            await reader.read()
            return False
        await _write(writer, response)
        return not response.cut and request.headers.get("connection", "").lower() != "close"


async def _read(reader: StreamReader, writer: StreamWriter) -> HttpRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip().split("\r\n")
    method, path, _ = first.split(" ", 2)
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if "expect" in headers:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _read_chunks(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return HttpRequest(method, path, headers, body)


async def _read_chunks(reader: StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return body


async def _write(writer: StreamWriter, response: HttpResponse) -> None:
    whole = len(response.pieces) == 1 and not response.cut
    length = f"content-length: {len(response.pieces[0])}" if whole else "transfer-encoding: chunked"
    fields = (f"{name}: {value}" for name, value in response.headers.items())
    first = f"HTTP/1.1 {response.status} {_phrase(response.status)}"
    writer.write("\r\n".join((first, *fields, length, "", "")).encode("latin-1"))
    if whole:
        writer.write(response.pieces[0])
    else:
        await _write_chunks(writer, response)
    await writer.drain()


async def _write_chunks(writer: StreamWriter, response: HttpResponse) -> None:
    for piece in response.pieces:
        if piece:  # an empty chunk would be the end
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
    if not response.cut:
        writer.write(b"0\r\n\r\n")


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in set(HTTPStatus) else "Unknown"
