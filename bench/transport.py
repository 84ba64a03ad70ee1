"""Which HTTP transport carries the model calls cheapest? httpx's own pool against httpx on aiohttp.

A local server in its own process streams an answer of 20 chunks; the client makes 1,000 calls with 1, 50 and 200 in
flight. Printed: wall seconds and CPU seconds of the client for 1,000 calls. Run: `python bench/transport.py`.
"""

import asyncio
import json
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import httpx
from httpx_aiohttp import HttpxAiohttpClient

CALLS = 1_000
CHUNKS = 20
_DELTA = json.dumps({"choices": [{"index": 0, "delta": {"content": "喂喂喂喂"}, "finish_reason": None}]})
_EVENT = f"data: {_DELTA}\n\n".encode()
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            writer.write(_HEAD)
            for _ in range(CHUNKS):
                writer.write(b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT))
                await asyncio.sleep(0)
            writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def serve(pipe: Connection) -> None:
    async def run() -> None:
        server = await asyncio.start_server(_answer, "127.0.0.1", 0, backlog=1_000)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


async def measure(client: httpx.AsyncClient, url: str, in_flight: int) -> tuple[float, float]:
    body = json.dumps({"messages": [{"role": "user", "content": "喂" * 500}]}).encode()
    left = iter(range(CALLS))

    async def worker() -> None:
        for _ in left:
            async with client.stream("POST", url, content=body) as response:
                async for _ in response.aiter_bytes():
                    pass

    async with client:
        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(worker() for _ in range(in_flight)))
        return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    unbounded = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    clients: dict[str, Callable[[], httpx.AsyncClient]] = {
        "httpx": lambda: httpx.AsyncClient(limits=unbounded, timeout=None),
        "httpx-aiohttp": lambda: HttpxAiohttpClient(limits=httpx.Limits(max_connections=0), timeout=None),
    }
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{ours.recv()}/v1/chat/completions"
    print(f"{'transport':14} {'in flight':>9} {'wall s':>8} {'CPU s':>8}   for {CALLS} calls")
    for in_flight in (1, 50, 200):
        for name, client in clients.items():
            wall, cpu = asyncio.run(measure(client(), url, in_flight))
            print(f"{name:14} {in_flight:9} {wall:8.2f} {cpu:8.2f}")
    server.terminate()


if __name__ == "__main__":
    main()
