"""`bot.py` as a real child process: its own data folder, its own port, a clean environment."""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, closing
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Self

from kernel.adapters.embedded.clock import SystemClock

OURS = ("QIWO_", "ONEBOT_", "NONEBOT_")
SETTINGS = frozenset({"HOST", "PORT", "SUPERUSERS", "NICKNAME", "COMMAND_START", "LOG_LEVEL", "DRIVER", "ENVIRONMENT"})
"""What the app reads from the environment, so that a developer's own settings stay out of a test."""

PAUSE = 0.05
"""Seconds between two looks at a process that is starting."""


class BotProcess:
    """`with BotProcess(root) as bot:` or `async with`; `start` again after `kill` finds the same data and port.

    `root` holds bot.py; the process runs in a folder of its own, so that paths in `env` have to be absolute.
    """

    def __init__(
        self,
        root: Path,
        *,
        env: Mapping[str, str] | None = None,
        data: Path | None = None,
        patience: float = 30.0,
    ) -> None:
        """`data` outlives the process when it is given; `patience` is how long it may take to start or to stop."""
        self._home = tempfile.TemporaryDirectory(prefix="qiwo-", ignore_cleanup_errors=True)
        self._log = Path(self._home.name) / "bot.log"
        self._log.touch()
        self._root = root
        self.patience = patience
        self._process: subprocess.Popen[bytes] | None = None
        self.data = data or Path(self._home.name) / "data"
        self.port = free_port()
        self._env = {**clean(os.environ), **self._own_env(), **(env or {})}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def onebot(self) -> str:
        """Where a FakeQQ connects to."""
        return f"ws://127.0.0.1:{self.port}/onebot/v11/ws"

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        return self._running().pid

    @property
    def log(self) -> str:
        """What the process has printed so far, over all its starts."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def start(self) -> None:
        """Start, and return when it answers. Raises RuntimeError with its output when it died or did not."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(self._root.resolve() / "bot.py")],
                cwd=self._home.name,  # so that a developer's own .env stays out of a test
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        clock = SystemClock()
        end = clock.monotonic() + self.patience
        while not self._answers():
            if self._ended_within(PAUSE):
                raise RuntimeError(f"bot.py ended with {self._process.returncode}:\n{self.log}")
            if clock.monotonic() > end:
                raise RuntimeError(f"bot.py did not answer within {self.patience:g} s:\n{self.log}")

    def terminate(self) -> None:
        """SIGTERM, as a service manager stops it."""
        self._running().terminate()

    def kill(self) -> None:
        """SIGKILL: no last word."""
        self._running().kill()

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired. Blocks: use `asyncio.to_thread` beside a fake QQ."""
        return self._running().wait(self.patience if timeout is None else timeout)

    def stop(self) -> None:
        """End it, politely first; does nothing when it has ended."""
        if self._process is None or self._process.poll() is not None:
            return
        self.terminate()
        if not self._ended_within(self.patience):
            self.kill()
            self.wait()

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self._clear)
            self.start()
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._clear)

    def _clear(self) -> None:
        self.stop()
        self._home.cleanup()

    def _own_env(self) -> dict[str, str]:
        return {
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
            "QIWO_DATA_DIR": str(self.data),
            "PYTHONUNBUFFERED": "1",
            "PYTHONIOENCODING": "utf-8",
        }

    def _answers(self) -> bool:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=1.0)) as connection:
            try:
                connection.request("GET", "/healthz")
                return connection.getresponse().status == HTTPStatus.OK
            except (OSError, HTTPException):
                return False

    def _ended_within(self, seconds: float) -> bool:
        try:
            self._running().wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _running(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "not started"
        return self._process


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without anything that the app takes for a setting."""
    return {
        name: value
        for name, value in environment.items()
        if not name.upper().startswith(OURS) and name.upper() not in SETTINGS
    }


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
