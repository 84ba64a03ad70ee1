"""The floor: raw websockets and one HTTP call a message. No framework, no record, no tools. PORT, MODEL_URL."""

import asyncio
import json
import os
from http import HTTPStatus

import httpx
from websockets.asyncio.server import Request, Response, ServerConnection, serve


async def reply(socket: ServerConnection, client: httpx.AsyncClient, event: dict[str, object]) -> None:
    text = "".join(part["data"]["text"] for part in event["message"])  # type: ignore[attr-defined]
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    answer = (await client.post(f"{os.environ['MODEL_URL']}/chat/completions", json=body)).json()
    params = {"user_id": event["user_id"], "message": answer["choices"][0]["message"]["content"]}
    await socket.send(json.dumps({"action": "send_private_msg", "params": params, "echo": "1"}))


async def main() -> None:
    async with httpx.AsyncClient(limits=httpx.Limits(), timeout=60) as client, asyncio.TaskGroup() as tasks:

        async def handle(socket: ServerConnection) -> None:
            async for frame in socket:
                event = json.loads(frame)
                if event.get("post_type") == "message":
                    tasks.create_task(reply(socket, client, event))

        def health(socket: ServerConnection, request: Request) -> Response | None:
            return socket.respond(HTTPStatus.OK, "ok") if request.path == "/healthz" else None

        async with serve(handle, "127.0.0.1", int(os.environ["PORT"]), process_request=health, max_size=None) as server:
            await server.serve_forever()


asyncio.run(main())
