"""The seam between NoneBot and the kernel: the only place that knows both, beside the gateway plugin."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import cast

import nonebot
from nonebot.drivers import Driver
from nonebot.log import LoguruHandler
from starlette.applications import Starlette

from kernel.app import Kernel
from kernel.chats import Chats
from kernel.console import pages, playground
from kernel.console.access import Access, WithoutQuery
from kernel.errors import ConfigError, LedgerFault
from kernel.settings import (
    UNNAMED,
    Settings,
    ensure_console_token,
    ensure_data_dir,
    ensure_token,
    napcat_address,
    napcat_line,
)


def load_settings() -> Settings:
    """Settings from `.env` and the environment; one sentence and exit status 2 when something is wrong there."""
    try:
        settings = Settings.load(os.environ, Path.cwd())
        settings.normalise(os.environ)
        ensure_data_dir(settings)
        settings, made = ensure_token(settings)
        check_port(settings)
    except ConfigError as error:
        print(f"Qiwo: {error}", file=sys.stderr)
        sys.exit(2)
    for warning in settings.warnings:
        print(f"Qiwo: {warning}", file=sys.stderr)
    if made:
        print(f"Qiwo: {napcat_line(settings)}", file=sys.stderr)
    return settings


def check_port(settings: Settings) -> None:
    """Raises ConfigError now, where the server would fail only after everything else was started."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as probe:
        if os.name == "posix":  # as the server does: what the last process left behind does not count
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            raise ConfigError(
                f"port {settings.port} on {settings.host} cannot be used ({error.strerror}): "
                "close what uses it, or set PORT to another number（端口被占用：换一个 PORT，或关掉占用它的程序）"
            ) from None


def build(settings: Settings) -> Kernel:
    """The kernel, with the playground's own plugins where there is one; one sentence and exit status 2 if it cannot."""
    try:
        chats = Chats.load(settings.data_dir / "qiwo.toml")
    except ConfigError as error:
        print(f"Qiwo: {error}", file=sys.stderr)
        sys.exit(2)
    return Kernel(settings, chats=chats, extra=[playground.DEMO_PLUGINS] if settings.playground_on else [])


def attach(driver: Driver, kernel: Kernel) -> None:
    """Let NoneBot start and stop the kernel, and serve its pages beside the OneBot socket."""
    logger = logging.getLogger("qiwo")
    logger.handlers = [LoguruHandler()]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    app = cast("Starlette", nonebot.get_asgi())
    pages.mount(app, kernel)
    play = open_playground(app, kernel) if kernel.settings.playground_on else None

    @driver.on_startup
    async def start() -> None:
        for name in ("uvicorn.access", "uvicorn.error"):
            logging.getLogger(name).addFilter(WithoutQuery())
        try:
            await kernel.start()
        except LedgerFault as fault:
            print(f"Qiwo: {fault}", file=sys.stderr, flush=True)
            os._exit(2)  # raising here, inside the server's start, would bury the sentence under a traceback
        chain_signals(kernel.close_door)
        settle_memory()
        print(f"Qiwo: {ready_line(kernel.settings)}", file=sys.stderr, flush=True)
        if play is not None:
            chain_signals(play.close)
            play.start()

    @driver.on_shutdown
    async def stop() -> None:
        if play is not None:
            await play.stop()
        await kernel.stop()


def ready_line(settings: Settings) -> str:
    """What somebody who has just started it wants to know next."""
    if settings.demo:
        return "已就绪，演示模型在回答；接真的模型：设 QIWO_MODEL_URL、QIWO_MODEL_KEY、QIWO_MODEL（见 .env.example）"
    page = "" if settings.playground_on else "；体验场已关，设 QIWO_PLAYGROUND=on 可以打开"
    return f"已就绪，模型 {settings.model or UNNAMED}；NapCat 的地址 {napcat_address(settings)}{page}"


def settle_memory() -> None:
    """What is loaded stays, so it need not be searched again: a full collection would stop every chat for 50 ms.

    Young objects are looked at less often, too: nearly all of them die by themselves.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def open_playground(app: Starlette, kernel: Kernel) -> playground.Playground:
    """Add the playground; its link is printed when it can be opened, as the last line of the start."""
    settings = ensure_console_token(kernel.settings)
    token = settings.console_token.get_secret_value()
    shown = "（QIWO_CONSOLE_TOKEN）" if kernel.settings.console_token else token
    link = f"http://{playground.address_of(settings)}/?token={shown}"
    play = playground.Playground(
        kernel, ready=lambda: print(f"\n企窝体验场，在浏览器里打开 · Open the playground: {link}\n", file=sys.stderr)
    )
    playground.mount(app, Access(token, settings.port), play)
    return play


def chain_signals(first: Callable[[], None]) -> None:
    """Run `first` in the loop before the server's own handler, whose shutdown hooks come after the sockets' end."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        previous = signal.getsignal(number)

        def handle(received: int, frame: FrameType | None, then: object = previous) -> None:
            loop.call_soon_threadsafe(first)
            if callable(then):
                then(received, frame)

        signal.signal(number, handle)
