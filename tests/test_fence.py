"""The fence: whatever a plugin's code does, the kernel gets a value, in time."""

import ast
import asyncio
import contextvars
import gc
import json
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kernel.fence import (
    MAX_DESCRIPTION,
    Contained,
    Fence,
    Late,
    Raised,
    Result,
    Returned,
    contain_tasks,
    describe,
    in_thread,
    place_of,
)
from kernel.testkit.clock import FakeClock, settle


def play(story: Callable[[FakeClock, Fence], Coroutine[Any, Any, None]]) -> None:
    """Run a story on a fake clock. The loop must have nothing to complain of, not even at its end."""
    noise: list[str] = []
    clock = FakeClock()
    fence = Fence(clock)

    async def told() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: noise.append(str(context)))
        try:
            await story(clock, fence)
            gc.collect()
            await settle()
        finally:  # what waits for the clock ends with the story, also when that has failed
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await clock.advance(60)

    asyncio.run(told())
    gc.collect()
    assert noise == []


def begin(awaitable: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
    return asyncio.create_task(awaitable)


def line_of(result: object) -> str:
    """The source line of this file that a Raised points at."""
    assert isinstance(result, Raised)
    file, _, number = result.where.rpartition(":")
    assert Path(file) == Path(__file__)
    return Path(file).read_text("utf-8").splitlines()[int(number) - 1].strip()


# -- what comes back -----------------------------------------------------------------------------------------


def plain() -> str:
    return "value"


async def slow() -> str:
    await asyncio.sleep(0)
    return "value"


def hidden() -> Awaitable[str]:
    """What a decorator makes of a coroutine function when it does not know of such things."""
    return slow()


@pytest.mark.parametrize("call", [plain, slow, hidden, partial(in_thread, plain), partial(in_thread, hidden)], ids=str)
def test_the_value_comes_back(call: Callable[[], Any]) -> None:
    """Plain, coroutine, hidden coroutine, in a thread or not: awaited as far as it goes, and returned."""

    async def story(clock: FakeClock, fence: Fence) -> None:
        assert await fence.run(call, 5) == Returned("value")
        assert await fence.run(call, None) == Returned("value")

    play(story)


ENDS = [ValueError, SystemExit, KeyboardInterrupt, asyncio.CancelledError, TimeoutError, GeneratorExit]


@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.parametrize("late", [False, True], ids=["at once", "later"])
def test_what_it_raises_is_a_value(kind: type[BaseException], late: bool) -> None:
    """Even what ends a process ends only the call; a TimeoutError or CancelledError of its own is no deadline."""
    error = kind("x")

    async def call() -> None:
        await asyncio.sleep(0)
        raise error  # later

    def at_once() -> None:
        raise error  # at once

    async def story(clock: FakeClock, fence: Fence) -> None:
        result = await fence.run(call if late else at_once, 5)
        assert isinstance(result, Raised)
        assert result.error is error
        assert line_of(result) == ("raise error  # later" if late else "raise error  # at once")
        assert result.summary == f"{kind.__name__}: x"

    play(story)


def test_a_leaked_cancellation_does_not_cancel_the_caller() -> None:
    """Code that awaits a task which somebody cancelled has crashed; the turn around it goes on."""

    async def leaks() -> None:
        task = asyncio.create_task(asyncio.Event().wait())
        task.cancel()
        await task

    async def story(clock: FakeClock, fence: Fence) -> None:
        result = await fence.run(leaks, 5)
        assert isinstance(result, Raised)
        assert isinstance(result.error, asyncio.CancelledError)
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0

    play(story)


# -- deadlines -----------------------------------------------------------------------------------------------


def test_a_deadline_holds_and_cleaning_up_is_waited_for() -> None:
    """After its seconds the code is cancelled; what its `finally` still does within the grace is done."""
    cleaned: list[float] = []

    async def story(clock: FakeClock, fence: Fence) -> None:
        async def call() -> None:
            try:
                await clock.sleep(100)
            finally:
                await clock.sleep(0.5)
                cleaned.append(clock.monotonic())

        running = begin(fence.run(call, 5))
        await clock.advance(4.9)
        assert not running.done()
        await clock.advance(0.2)
        assert (running.done(), cleaned) == (False, [])
        await clock.advance(0.5)
        assert (await running, cleaned) == (Late(5, stuck=False), [5.5])

    play(story)


def test_without_a_deadline_it_may_take_its_time() -> None:
    """None is never."""

    async def story(clock: FakeClock, fence: Fence) -> None:
        running = begin(fence.run(partial(clock.sleep, 10**6), None))
        await clock.advance(10**6 - 1)
        assert not running.done()
        await clock.advance(1)
        assert await running == Returned(None)

    play(story)


@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_an_answer_after_the_deadline_is_late(ending: str) -> None:
    """What it returns or raises on being cancelled changes nothing: time was up."""

    async def call() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if ending == "raises":
                raise ValueError("while cleaning up") from None
        return "too late"

    async def story(clock: FakeClock, fence: Fence) -> None:
        running = begin(fence.run(call, 5))
        await clock.advance(5)
        assert await running == Late(5, stuck=False)

    play(story)


class Handed(FakeClock):
    """Hands out its last timeout."""

    last: asyncio.Timeout

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        self.last = super().timeout(seconds)
        return self.last


def test_a_value_in_the_very_moment_of_the_deadline_counts() -> None:
    """A call that has ended has ended: its effect is not reported as unknown."""

    async def told() -> None:
        clock = Handed()

        async def call() -> str:
            await asyncio.sleep(0)
            clock.last.reschedule(asyncio.get_running_loop().time())
            return "just in time"

        assert await Fence(clock).run(call, 5) == Returned("just in time")
        assert clock.last.expired()

    asyncio.run(told())


async def stubborn() -> None:
    """Swallows its first cancellation and then waits for something that nobody else holds."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.get_running_loop().create_future()


def test_code_that_swallows_its_cancellation_does_not_hold_the_caller() -> None:
    """It is reported as stuck when the grace is over, and kept alive by the fence: no task is lost in the air."""

    async def story(clock: FakeClock, fence: Fence) -> None:
        running = begin(fence.run(stubborn, 5))
        await clock.advance(5.9)
        assert not running.done()
        await clock.advance(0.1)
        assert await running == Late(5, stuck=True)
        gc.collect()
        await settle()
        assert len(asyncio.all_tasks()) == 2

    play(story)


def test_a_stuck_one_that_ends_after_all_is_forgotten() -> None:
    """The fence does not collect what has ended."""
    released = asyncio.Event()

    async def call() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    async def story(clock: FakeClock, fence: Fence) -> None:
        running = begin(fence.run(call, 5))
        await clock.advance(6)
        assert await running == Late(5, stuck=True)
        (stuck,) = map(weakref.ref, asyncio.all_tasks() - {asyncio.current_task()})
        released.set()
        await settle()
        gc.collect()
        assert stuck() is None

    play(story)


# -- being cancelled -----------------------------------------------------------------------------------------


def test_cancelling_the_caller_cancels_the_code_and_waits_for_it() -> None:
    """`/stop` reaches the tool, and the turn goes on only when the tool has cleaned up."""
    cleaned: list[str] = []

    async def story(clock: FakeClock, fence: Fence) -> None:
        async def call() -> None:
            try:
                await clock.sleep(100)
            finally:
                await clock.sleep(0.5)
                cleaned.append("up")

        running = begin(fence.run(call, 50))
        await settle()
        running.cancel()
        await clock.advance(0.4)
        assert not running.done()
        await clock.advance(0.1)
        assert (running.cancelled(), cleaned) == (True, ["up"])

    play(story)


def test_cancelling_the_caller_is_not_held_by_stubborn_code() -> None:
    """After the grace the caller is cancelled all the same."""

    async def story(clock: FakeClock, fence: Fence) -> None:
        running = begin(fence.run(stubborn, None))
        await settle()
        running.cancel()
        await clock.advance(0.9)
        assert not running.done()
        await clock.advance(0.1)
        assert running.cancelled()

    play(story)


def test_a_second_cancellation_loses_no_task() -> None:
    """Being cancelled again while waiting for the code to stop: the caller goes at once, the code stays owned."""

    async def story(clock: FakeClock, fence: Fence) -> None:
        running = begin(fence.run(stubborn, None))
        await settle()
        running.cancel()
        await settle()
        running.cancel()
        await settle()
        assert running.cancelled()
        gc.collect()
        await settle()
        assert len(asyncio.all_tasks()) == 2

    play(story)


def test_a_deadline_around_the_call_is_not_the_call_s() -> None:
    """The turn's deadline cuts through: the code is cancelled, and TimeoutError belongs to who set it."""
    stopped: list[str] = []

    async def call() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append("yes")
            raise

    async def story(clock: FakeClock, fence: Fence) -> None:
        async def turn() -> str:
            try:
                async with clock.timeout(3):
                    await fence.run(call, 10)
            except TimeoutError:
                return "the turn's"
            return "no deadline"

        running = asyncio.create_task(turn())
        await clock.advance(3)
        assert (await running, stopped) == ("the turn's", ["yes"])

    play(story)


# -- threads -------------------------------------------------------------------------------------------------


def test_a_blocking_function_runs_in_a_daemon_thread() -> None:
    """Beside the loop, with the caller's context variables, and without holding the end of the process."""
    mark = contextvars.ContextVar("mark", default="unset")

    def look() -> tuple[bool, bool, str]:
        thread = threading.current_thread()
        return thread is threading.main_thread(), thread.daemon, mark.get()

    async def story(clock: FakeClock, fence: Fence) -> None:
        mark.set("mine")
        assert await fence.run(partial(in_thread, look), 5) == Returned((False, True, "mine"))

    play(story)


@pytest.mark.parametrize(
    ("error", "summary"),
    [
        (ValueError("x"), "ValueError: x"),
        (TimeoutError(), "TimeoutError"),
        (SystemExit(3), "SystemExit: 3"),
        (StopIteration(7), "StopIteration: 7"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
)
def test_what_a_thread_raises_comes_back_with_its_place(error: BaseException, summary: str) -> None:
    """Exceptions as they are; what no coroutine may raise as a Contained that names it; the line is the tool's."""

    def fails() -> None:
        raise error  # in its thread

    async def story(clock: FakeClock, fence: Fence) -> None:
        result = await fence.run(partial(in_thread, fails), 5)
        assert isinstance(result, Raised)
        assert result.summary == summary
        assert line_of(result) == "raise error  # in its thread"
        assert result.error is error or isinstance(result.error, Contained)

    play(story)


@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_a_blocked_thread_does_not_hold_the_loop(ending: str) -> None:
    """At the deadline the loop goes on; what the thread brings later is dropped without a word."""
    release = threading.Event()
    threads: list[threading.Thread] = []

    def blocks() -> None:
        threads.append(threading.current_thread())
        release.wait(60)
        if ending == "raises":
            raise ValueError("nobody listens")

    async def story(clock: FakeClock, fence: Fence) -> None:
        running = begin(fence.run(partial(in_thread, blocks), 5))
        await clock.advance(5)
        assert await running == Late(5, stuck=False)
        release.set()
        threads[0].join(60)
        await settle()

    play(story)
    assert not threads[0].is_alive()


def test_a_thread_may_outlive_the_loop() -> None:
    """The bot has stopped and the thread only now comes back: nothing is raised in it."""
    release = threading.Event()
    threads: list[threading.Thread] = []

    def blocks() -> None:
        threads.append(threading.current_thread())
        release.wait(60)

    async def story(clock: FakeClock, fence: Fence) -> None:
        running = begin(fence.run(partial(in_thread, blocks), 5))
        await clock.advance(5)
        assert await running == Late(5, stuck=False)

    play(story)
    release.set()
    threads[0].join(60)  # an exception in a thread fails the test: warnings are errors
    assert not threads[0].is_alive()


# -- where and what ------------------------------------------------------------------------------------------

PLUGIN = """\
import ast
import json
from dataclasses import dataclass

from kernel.errors import ToolError
from kernel.tools import tool_from

@dataclass(frozen=True)
class Point:
    x: int = 0

def own():
    raise ValueError("mine")

def library():
    json.loads("{")

def generated():
    Point().x = 1

def evaluated():
    ast.literal_eval("1 +")

def kernel():
    tool_from(own, plugin="p")
"""


@pytest.mark.parametrize(
    ("name", "line"), [("own", 13), ("library", 16), ("generated", 19), ("evaluated", 22), ("kernel", 25)]
)
def test_the_place_is_the_author_s_last_line(tmp_path: Path, name: str, line: int) -> None:
    """Not the line in a library, in generated code or in the kernel that noticed it: the one that he can mend."""
    file = tmp_path / "plugin.py"
    space: dict[str, Any] = {"__name__": "plugin"}
    exec(compile(PLUGIN, str(file), "exec"), space)

    async def story(clock: FakeClock, fence: Fence) -> None:
        for call in (space[name], partial(in_thread, space[name])):
            result = await fence.run(call, 5)
            assert isinstance(result, Raised)
            assert result.where == f"{file}:{line}"

    play(story)


def test_the_place_of_a_syntax_error_is_the_wrong_line(tmp_path: Path) -> None:
    """A plugin that cannot be read is shown where, not where it was read."""
    file = tmp_path / "plugin.py"
    with pytest.raises(SyntaxError) as caught:
        compile("x = 1\ny = (\n", str(file), "exec")
    assert place_of(caught.value) == f"{file}:2"


def test_without_a_line_of_the_author_s_the_last_one_is_told() -> None:
    """A library function as the tool: its own line is better than none; and none is no crash."""

    async def story(clock: FakeClock, fence: Fence) -> None:
        result = await fence.run(partial(json.loads, "{"), 5)
        assert isinstance(result, Raised)
        assert Path(result.where.rpartition(":")[0]) == Path(json.decoder.__file__)
        builtin = await fence.run(partial(int, "x"), 5)
        assert isinstance(builtin, Raised)
        assert builtin.where == ""

    play(story)
    assert place_of(ValueError("never raised")) == ""
    with pytest.raises(SyntaxError) as caught:
        ast.literal_eval("1 +")
    assert place_of(caught.value).startswith(f"{__file__}:")


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize(
    ("error", "summary"),
    [
        (ValueError("one\ntwo"), "ValueError: one"),
        (ValueError("\n  one  \n"), "ValueError: one"),
        (ValueError(), "ValueError"),
        (KeyError("x"), "KeyError: 'x'"),
        (Speechless(), "Speechless"),
        (ValueError("x" * 10**6), "ValueError: " + "x" * (MAX_DESCRIPTION - 12)),
    ],
    ids=["lines", "blanks", "empty", "key", "speechless", "endless"],
)
def test_an_error_is_told_in_one_short_line(error: BaseException, summary: str) -> None:
    """Type and first line; an exception that cannot say itself is told by its type."""
    assert describe(error) == summary


def test_code_that_cancels_itself_cancels_nobody_else() -> None:
    """It is told as what it raised; the caller goes on."""

    async def story(clock: FakeClock, fence: Fence) -> None:
        async def suicidal() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

        result = await fence.run(suicidal, 5)
        assert isinstance(result, Raised)
        assert result.summary == "CancelledError: it cancelled itself"

    play(story)


def test_an_exit_in_a_task_of_a_plugin_ends_that_task_only() -> None:
    """`asyncio.gather` makes tasks that no fence surrounds; the loop is told who is inside one."""

    async def story(clock: FakeClock, fence: Fence) -> None:
        contain_tasks(asyncio.get_running_loop())

        async def leave() -> None:
            raise SystemExit(3)

        async def careless() -> None:
            await asyncio.gather(leave(), leave())

        result = await fence.run(careless, 5)
        assert isinstance(result, Raised)
        assert result.summary == "SystemExit: 3"
        assert "raise SystemExit(3)" in line_of(result)

    play(story)


def test_a_task_of_the_kernels_own_is_as_it_was() -> None:
    """Only what code behind the fence starts is contained."""

    async def story() -> str:
        contain_tasks(asyncio.get_running_loop())

        async def work() -> str:
            return "done"

        task = asyncio.create_task(work(), name="mine")
        assert task.get_coro().__name__ == "work"  # type: ignore[union-attr]
        return f"{await task} by {task.get_name()}"

    assert asyncio.run(story()) == "done by mine"
