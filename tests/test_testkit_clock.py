"""FakeClock: seconds pass only when told to, and whoever waits wakes in order."""

import asyncio

import pytest

from kernel.ports import Clock
from kernel.testkit import FakeClock, settle


def test_both_clocks_move_together_and_only_the_wall_jumps() -> None:
    """`advance` moves both clocks; `jump_wall` only the one that is shown."""

    async def story() -> None:
        clock: Clock = FakeClock(now=1000.0)
        assert isinstance(clock, FakeClock)
        await clock.advance(2.5)
        assert (clock.now(), clock.monotonic()) == (1002.5, 2.5)
        clock.jump_wall(-3600)
        await clock.advance(1)
        assert (clock.now(), clock.monotonic()) == (-2596.5, 3.5)

    asyncio.run(story())


def test_nothing_wakes_early() -> None:
    """A sleeper wakes at its time, not before, however much else runs."""

    async def story() -> None:
        clock = FakeClock()
        sleeper = asyncio.create_task(clock.sleep(10))
        await clock.advance(9.999)
        assert not sleeper.done()
        await clock.advance(0.001)
        assert sleeper.done()

    asyncio.run(story())


def test_sleepers_wake_in_order_of_their_time_and_of_their_coming() -> None:
    """Within one advance each wakes at its own second; equal ones in the order in which they lay down."""

    async def story() -> None:
        clock, woken = FakeClock(), []

        async def sleeper(name: str, seconds: float) -> None:
            await clock.sleep(seconds)
            woken.append((name, clock.monotonic()))

        async with asyncio.TaskGroup() as group:
            for name, seconds in (("c", 3), ("a", 1), ("b1", 2), ("b2", 2)):
                group.create_task(sleeper(name, seconds))
            await clock.advance(100)
        assert woken == [("a", 1), ("b1", 2), ("b2", 2), ("c", 3)]

    asyncio.run(story())


def test_who_wakes_can_sleep_again_within_one_advance() -> None:
    """The loop runs between two timers, so a chain of sleeps takes as long as it says."""

    async def story() -> None:
        clock, ticks = FakeClock(), []

        async def ticker() -> None:
            while True:
                await clock.sleep(1)
                ticks.append(clock.monotonic())

        task = asyncio.create_task(ticker())
        await clock.advance(3.5)
        assert ticks == [1, 2, 3]
        task.cancel()

    asyncio.run(story())


def test_a_sleep_of_nothing_lets_others_run() -> None:
    """`sleep(0)` needs no advance and gives way once."""

    async def story() -> None:
        clock, ran = FakeClock(), []
        other = asyncio.create_task(clock.sleep(0))
        other.add_done_callback(lambda _: ran.append("other"))
        for _ in range(3):
            await clock.sleep(0)
        assert ran == ["other"]

    asyncio.run(story())


def test_a_timeout_cuts_its_block_short_at_its_second() -> None:
    """TimeoutError when the fake time is up, and not before."""

    async def story() -> None:
        clock = FakeClock()

        async def block() -> str:
            try:
                async with clock.timeout(5):
                    await asyncio.Event().wait()
            except TimeoutError:
                return f"out at {clock.monotonic():g}"
            return "in time"

        task = asyncio.create_task(block())
        await clock.advance(4.9)
        assert not task.done()
        await clock.advance(10)
        assert task.result() == "out at 5"

    asyncio.run(story())


def test_a_block_that_ended_in_time_is_left_alone() -> None:
    """The timer of a finished block does nothing when its time comes."""

    async def story() -> None:
        clock = FakeClock()
        async with clock.timeout(5):
            await clock.sleep(0)
        await clock.advance(10)
        assert clock.monotonic() == 10

    asyncio.run(story())


def test_no_timeout_is_for_ever_and_one_of_zero_is_at_once() -> None:
    """None never expires; 0 expires without any advance, as asyncio's does."""

    async def story() -> None:
        clock = FakeClock()
        async with clock.timeout(None) as never:
            await clock.advance(1e9)
        assert not never.expired()
        with pytest.raises(TimeoutError):
            async with clock.timeout(0):
                await asyncio.Event().wait()

    asyncio.run(story())


def test_a_cancelled_sleeper_is_forgotten() -> None:
    """Cancelling a sleep works at once and disturbs nobody later."""

    async def story() -> None:
        clock = FakeClock()
        gone, stays = asyncio.create_task(clock.sleep(1)), asyncio.create_task(clock.sleep(1))
        await settle()
        gone.cancel()
        await clock.advance(2)
        assert (gone.cancelled(), stays.done(), stays.cancelled()) == (True, True, False)

    asyncio.run(story())


def test_time_does_not_run_backwards() -> None:
    """A negative advance is refused and moves nothing."""

    async def story() -> None:
        clock = FakeClock()
        with pytest.raises(ValueError, match="backwards"):
            await clock.advance(-1)
        assert clock.monotonic() == 0

    asyncio.run(story())
