"""The fence around a plugin's code: the one place where anything that it raises is caught and becomes a value."""

import asyncio
import contextlib
import contextvars
import inspect
import sysconfig
import threading
import traceback
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kernel.ports import Clock

_LIBRARIES = ("<", str(Path(__file__).parent), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
"""Frames of libraries, the kernel and generated code are passed over: the author wants the last line of his."""

MAX_DESCRIPTION = 300
"""Characters: some libraries put a whole page that they could not read into their message."""

GRACE = 1.0
"""Seconds that a cancelled tool gets for its own cleaning up, before it counts as stuck."""


@dataclass(frozen=True, slots=True)
class Returned:
    """It ended well, with this value."""

    value: object


@dataclass(frozen=True, slots=True)
class Raised:
    """It raised; `where` is file:line of the innermost frame outside any library."""

    error: BaseException
    where: str

    @property
    def summary(self) -> str:
        return describe(self.error)


@dataclass(frozen=True, slots=True)
class Late:
    """It did not end in time; `stuck` when it did not stop on being cancelled either."""

    seconds: float
    stuck: bool


Result = Returned | Raised | Late


def describe(error: BaseException) -> str:
    """One line: the type and the first line of the message."""
    said = attempt(partial(str, error))  # its __str__ is a plugin's code too
    lines = str(said.value).strip().splitlines() if isinstance(said, Returned) else []
    names = [] if isinstance(error, Contained) else [type(error).__name__]  # its message names the type already
    return ": ".join([*names, *lines[:1]])[:MAX_DESCRIPTION]


def place_of(error: BaseException) -> str:
    """file:line where it was raised; of a SyntaxError, the line that is wrong."""
    if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith("<"):
        return f"{error.filename}:{error.lineno}"
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    beyond = [f"{file}:{line}" for file, line in frames if file != __file__]
    own = [f"{file}:{line}" for file, line in frames if not file.startswith(_LIBRARIES)]
    return (own or beyond or [""])[-1]


def attempt(call: Callable[[], Any]) -> Returned | Raised:
    """Call plugin code that must answer on the spot: a validator, a `__str__`."""
    try:
        return Returned(call())
    except BaseException as error:
        return Raised(error, place_of(error))


class Fence:
    """Runs plugin code under a deadline, in a task of its own; owns the tasks that are slow to stop."""

    def __init__(self, clock: Clock, grace: float = GRACE) -> None:
        self._clock = clock
        self._grace = grace
        self._stopping: set[asyncio.Task[Result]] = set()

    async def run(self, call: Callable[[], Any], seconds: float | None) -> Result:
        """Call it, await it if it is awaitable, and tell how it ended.

        A deadline holds even when the code swallows its cancellation. Being cancelled cancels the code too.
        """
        task = asyncio.create_task(_guarded(call))
        try:
            async with self._clock.timeout(seconds):
                await asyncio.wait({task})
        except TimeoutError:
            if task.done():
                return _result(task)
            return Late(seconds or 0.0, stuck=not await self._stop(task))
        except asyncio.CancelledError:
            await self._stop(task)
            raise
        return _result(task)

    async def _stop(self, task: asyncio.Task[Result]) -> bool:
        """Cancel and wait for the grace; False when it goes on all the same."""
        task.cancel()
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
        with contextlib.suppress(TimeoutError):
            async with self._clock.timeout(self._grace):
                await asyncio.wait({task})
        return task.done()


def _result(task: "asyncio.Task[Result]") -> Result:
    """Code that cancels its own task and returns is no cancellation of ours."""
    if task.cancelled():
        return Raised(asyncio.CancelledError("it cancelled itself"), "")
    return task.result()


_FENCED: contextvars.ContextVar[bool] = contextvars.ContextVar("fenced", default=False)
"""Whether a task was started by a plugin's code."""


def contain_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """From now on a SystemExit in a task of a plugin (`asyncio.gather(…)`) ends that task, not the loop."""

    def factory(
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **more: Any,  # noqa: ANN401 - name, context and what later Pythons add
    ) -> asyncio.Task[Any]:
        if _FENCED.get() and inspect.iscoroutine(work):
            work = _contained(work)
        return asyncio.Task(work, loop=loop, **more)

    loop.set_task_factory(factory)


async def _contained(work: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - whatever it returns
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise Contained(describe(error)).with_traceback(error.__traceback__) from None


class Contained(Exception):
    """Plugin code raised, in a task or thread, what no coroutine may raise: SystemExit, StopIteration, …"""


async def _guarded(call: Callable[[], Any]) -> Result:
    """BaseException is caught inside the code's own task: a SystemExit that reaches the loop would end the bot."""
    _FENCED.set(True)
    try:
        value = call()
        while inspect.isawaitable(value):  # twice when a plain wrapper hid a coroutine function from its caller
            value = await value
        return Returned(value)
    except BaseException as error:
        return Raised(error, place_of(error))


async def in_thread(function: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the plugin's function returns
    """Run a blocking function in a daemon thread: neither the loop nor the end of the process waits for it."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Returned | Raised] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(result: Returned | Raised) -> None:
        if not ended.done():  # cancelled: nobody waits any more
            ended.set_result(result)

    def work() -> None:
        result: Returned | Raised
        try:
            result = Returned(context.run(function))
        except BaseException as error:
            result = Raised(error, "")
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(deliver, result)

    threading.Thread(target=work, name="qiwo-tool", daemon=True).start()
    match await ended:
        case Returned(value):
            return value
        case Raised(Exception() as error) if not isinstance(error, StopIteration):
            raise error
        case Raised(error):
            raise Contained(describe(error)).with_traceback(error.__traceback__) from error
