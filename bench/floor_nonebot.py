"""The yardstick: bare NoneBot2 and aiohttp, a message in, one HTTP call, a reply out. PORT, MODEL_URL."""

import os

import aiohttp
import nonebot
from nonebot import on_message
from nonebot.adapters.onebot.v11 import Adapter, Bot, MessageEvent
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

nonebot.init(driver="~fastapi+~httpx+~websockets", host="127.0.0.1", port=int(os.environ["PORT"]))
driver = nonebot.get_driver()
driver.register_adapter(Adapter)
session: list[aiohttp.ClientSession] = []


@driver.on_startup
async def start() -> None:
    session.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))


@driver.on_shutdown
async def stop() -> None:
    await session[0].close()


async def answer(bot: Bot, event: MessageEvent) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": event.get_plaintext()}]}
    async with session[0].post(f"{os.environ['MODEL_URL']}/chat/completions", json=body) as response:
        reply = await response.json()
    await bot.send(event, reply["choices"][0]["message"]["content"])


async def healthz(request: Request) -> Response:
    return PlainTextResponse("ok")


on_message(handlers=[answer])
nonebot.get_asgi().add_route("/healthz", healthz)
nonebot.run()
