"""QQ in the browser: the people of the page speak over a real reverse WebSocket into this very process."""

import asyncio
import json
import logging
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal

from jinja2 import Environment, FileSystemLoader
from pydantic import BaseModel, StringConstraints, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.staticfiles import StaticFiles
from websockets.exceptions import WebSocketException

from kernel import commands
from kernel.adapters.embedded.clock import SystemClock
from kernel.adapters.model.demo import PROMPTS
from kernel.app import Kernel
from kernel.console.access import Access
from kernel.console.facts import facts_of
from kernel.console.people import ACCOUNT, GROUP, PEOPLE, line_of, new_world
from kernel.settings import Settings
from kernel.testkit import FakeQQ
from kernel.testkit.segments import Segment, at_segment, text_segment

log = logging.getLogger("qiwo.playground")

HERE = Path(__file__).resolve().parent
DEMO_PLUGINS = HERE / "demo_plugins"

TICK = 1.0
"""Seconds between two reports to an open page of how the bot is."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds before connecting again."""

EXPECT = (
    "time_now 谁都可以用：模型调用它，然后报出时间。",
    "qq_call_state 只有超级用户可以用：别人会被拒绝，写明理由。换成超级用户再点一次，就允许了。",
    "模型一步里要了两个工具：报时和发消息。两个调用各有一个结果，先后收到两条消息。",
    "点三次，每次都崩溃，机器人没事。第四次被熔断挡下，写明还要等几秒；换一个聊天里照常。",
    "要跑 20 秒。不想等就点 /stop，马上停下。",
)
"""What to expect of each of the demo's prompts."""


class Refused(Exception):
    """The page asked for what cannot be; the words are shown there."""


class Said(BaseModel):
    """What the page sends; `quote` is the id of a message."""

    user: int
    chat: Literal["group", "private"]
    text: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2000)]
    at: bool = False
    quote: int | None = None


class Playground:
    """Owns the world, the connection and the open pages."""

    def __init__(self, kernel: Kernel, *, ready: Callable[[], None]) -> None:
        """`ready` is called once, when the first connection stands: now the server listens."""
        self._kernel = kernel
        self._clock = SystemClock()
        self._ready = ready
        token = kernel.settings.onebot_access_token.get_secret_value()
        self._qq = FakeQQ(
            f"ws://{address_of(kernel.settings)}/onebot/v11/ws",
            token=token or None,
            world=new_world(),
            stamp={"qiwo_stamp": kernel.stamp},
        )
        self._news = asyncio.Event()
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._closing = False

    # -- life ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._tasks = (asyncio.create_task(self._listen()), asyncio.create_task(self._stay_connected()))
        for task in self._tasks:
            task.add_done_callback(_ended)

    def close(self) -> None:
        """End the open pages' streams and the connection: the server waits for both."""
        if not self._closing:
            self._closing = True
            self._ring()
            for task in self._tasks:
                task.cancel()

    async def stop(self) -> None:
        self.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self) -> None:
        while True:
            await self._qq.sent.take(timeout=math.inf)
            self._ring()

    async def _stay_connected(self) -> None:
        """The server listens only after the start-up that this task belongs to: the first attempts may fail."""
        pause, told = FIRST_PAUSE, False
        try:
            while True:
                try:
                    await self._qq.connect()
                    if not told:
                        told = True
                        self._ready()
                    pause = FIRST_PAUSE
                    await self._qq.wait_closed(math.inf)
                except (OSError, WebSocketException) as error:
                    log.debug("not connected: %s", error)
                await self._clock.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
        finally:
            await self._qq.close()

    def _ring(self) -> None:
        """Wake the open pages."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    # -- what the page does ----------------------------------------------------------------------------------

    async def say(self, said: Said) -> None:
        """Let somebody speak. Raises Refused."""
        person = PEOPLE.get(said.user)
        if person is None or (said.chat == "group" and not person.member):
            raise Refused("没有这个人，或者他不在群里。")
        if not self._qq.connected:
            raise Refused("和机器人的连接还没有接上，请稍等。")
        segments = list(_segments(said))
        if said.chat == "group":
            await self._qq.group_says(GROUP, person.id, segments, at_bot=False)
        else:
            await self._qq.private_says(person.id, segments, kind=person.private, group=GROUP)
        self._ring()

    async def events(self, after: int) -> AsyncGenerator[str, None]:
        """Server-sent events: all that was said after that message, and how the bot is, until the shutdown."""
        world = self._qq.world
        while not self._closing:
            news = self._news
            for number in [number for number in world.messages if number > after]:
                yield _event("line", line_of(world.messages[number], world), number)
                after = number
            yield _event("status", self.facts())
            with suppress(TimeoutError):
                async with self._clock.timeout(TICK):
                    await news.wait()

    def facts(self) -> Mapping[str, Any]:
        return {**facts_of(self._kernel.status()), "connected": self._qq.connected}


def mount(app: Starlette, access: Access, playground: Playground) -> None:
    """Add the page and what it asks."""
    templates = Environment(loader=FileSystemLoader(HERE / "static"), autoescape=True)
    template = templates.get_template("playground.html")

    async def home(request: Request) -> Response:
        return RedirectResponse("/playground", 303)

    async def page(request: Request) -> Response:
        prompts = zip(PROMPTS, EXPECT, strict=True)
        return HTMLResponse(template.render(people=PEOPLE.values(), prompts=prompts, commands=commands.ALL))

    async def say(request: Request) -> Response:
        try:
            await playground.say(Said.model_validate_json(await request.body()))
        except (ValidationError, Refused) as error:
            words = str(error) if isinstance(error, Refused) else "这条消息发不出去：空的，或者太长。"
            return JSONResponse({"error": words}, 422)
        return Response(status_code=204)

    async def events(request: Request) -> Response:
        last = request.headers.get("last-event-id", "")
        stream = playground.events(int(last) if last.isdecimal() else 0)
        return StreamingResponse(stream, media_type="text/event-stream")

    async def status(request: Request) -> Response:
        return JSONResponse(playground.facts())

    app.add_route("/", access.guard(home))
    app.add_route("/playground", access.guard(page))
    app.add_route("/playground/say", access.guard(say), ["POST"])
    app.add_route("/playground/events", access.guard(events))
    app.add_route("/playground/status", access.guard(status))
    app.mount("/playground/static", StaticFiles(directory=HERE / "static"))


def address_of(settings: Settings) -> str:
    """Where this machine reaches the bot, as host:port."""
    address = ip_address(settings.host)
    if address.is_unspecified:
        address = ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"{address}:{settings.port}" if address.version == 4 else f"[{address}]:{settings.port}"


def _segments(said: Said) -> list[Segment]:
    quote = [] if said.quote is None else [{"type": "reply", "data": {"id": str(said.quote)}}]
    if said.chat == "group" and said.at:
        return [*quote, at_segment(ACCOUNT), text_segment(f" {said.text}")]
    return [*quote, text_segment(said.text)]


def _event(kind: str, data: Mapping[str, Any], number: int | None = None) -> str:
    ident = "" if number is None else f"id: {number}\n"
    return f"{ident}event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("the playground broke: %s", error, exc_info=error)
