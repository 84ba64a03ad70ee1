"""What every dispatch promises, on one host or on many: one suite for all adapters."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import pytest
from tests.record import ALICE, CHAT, message, turn

from kernel.adapters.embedded.dispatch import GRACE, SEEN, EmbeddedDispatch
from kernel.adapters.embedded.memory import MemoryLedger
from kernel.conversation import Ending, Turn
from kernel.errors import LedgerFault
from kernel.ports import (
    Accepted,
    Action,
    Claim,
    ConversationReset,
    Delivery,
    Dispatch,
    Item,
    Ledger,
    NotSent,
    Reset,
    SendUnknown,
    Sent,
    TurnClosed,
    TurnOpened,
    Unfinished,
)
from kernel.source import ConversationId, Inbound
from kernel.testkit.clock import FakeClock, settle

OTHER = ConversationId("qq/1000/private/20002")


class Site:
    """One record and one clock; `host` puts up a new dispatch on them, as a new process would."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.ledger: Ledger = MemoryLedger()

    def host(self) -> Dispatch:
        return EmbeddedDispatch(self.ledger, self.clock)

    async def quiet(self) -> None:
        """Until everything has run that can run now."""
        await settle()

    @asynccontextmanager
    async def serving(self, drain: Callable[[Claim], Awaitable[None]]) -> AsyncIterator[Dispatch]:
        """A new host that works until the block ends."""
        dispatch = self.host()
        async with served(dispatch, drain):
            await self.quiet()
            yield dispatch


@asynccontextmanager
async def served(dispatch: Dispatch, drain: Callable[[Claim], Awaitable[None]]) -> AsyncIterator[None]:
    """Serving, with the account of the tests' messages attached, so that nothing waits for it."""
    task = asyncio.create_task(dispatch.serve(drain))
    try:
        async with dispatch.attach("1000", mute):
            yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def mute(action: Action) -> Delivery:
    return NotSent("nobody listens")


Scene = Callable[[Site], Coroutine[Any, Any, None]]


class Play(Protocol):
    def __call__(self, scene: Scene, *, errors: Sequence[str] = ()) -> None:
        """Play the scene on a new site; these errors, and no others, are logged."""


@pytest.fixture(params=[Site], ids=["embedded"])
def play(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Play:
    async def whole(scene: Scene) -> None:
        site = request.param()
        try:
            await scene(site)
        finally:
            await site.ledger.close()

    def run(scene: Scene, *, errors: Sequence[str] = ()) -> None:
        with caplog.at_level(logging.ERROR, "qiwo"):
            asyncio.run(whole(scene))
        assert [record.getMessage() for record in caplog.records] == list(errors)

    return run


class Worker:
    """A drain that takes one item after the other and remembers them; `gates` hold it at the items so named."""

    def __init__(self, *gates: str) -> None:
        self.done: list[str] = []
        self.texts: list[str] = []
        self.ended: list[str] = []
        """`item: reason` of what was cancelled while it was worked."""
        self.gates = {key: asyncio.Event() for key in gates}
        self.most = 0
        """Drains of one chat that ran at the same time."""
        self.epochs: list[str] = []
        self.born: set[str] = set()
        """Reasons for a cancel that a drain found in its claim before it did anything."""
        self._running: list[ConversationId] = []

    async def __call__(self, claim: Claim) -> None:
        self._running.append(claim.chat)
        self.most = max(self.most, self._running.count(claim.chat))
        self.epochs.append(claim.epoch)
        self.born.add(claim.cancelled)
        try:
            while items := await claim.pending():
                await self._work(claim, items[0])
        finally:
            self._running.remove(claim.chat)

    async def _work(self, claim: Claim, item: Item) -> None:
        await take(claim, item)
        try:
            if item.key in self.gates:
                await self.gates[item.key].wait()
            claim.check()
        except asyncio.CancelledError:
            self.ended.append(f"{item.key}: {claim.cancelled}")
            raise
        if isinstance(item.event, Inbound):
            await claim.commit(TurnClosed(turn_of(claim, item).close(Ending.ANSWERED), 2.0))
        self.done.append(item.key)
        self.texts.append(item.event.text if isinstance(item.event, Inbound) else "")


def take(claim: Claim, item: Item) -> Awaitable[None]:
    if isinstance(item.event, Reset):
        return claim.commit(ConversationReset(claim.chat, item.key, 1.0))
    if isinstance(item.event, Unfinished):
        return claim.commit(TurnClosed(item.event.turn.close(Ending.INTERRUPTED), 1.0))
    return claim.commit(TurnOpened(turn_of(claim, item), (item.key,)))


def turn_of(claim: Claim, item: Item) -> Turn:
    return turn(f"turn of {item.key}", item.key, chat=claim.chat)


async def accept(dispatch: Dispatch, *keys: str, chat: ConversationId = CHAT) -> list[bool]:
    return [await dispatch.accept(chat, message(key)) for key in keys]


async def waiting(site: Site) -> Sequence[str]:
    return [item.key for item in await site.ledger.backlog()]


# -- order ---------------------------------------------------------------------------------------------------


def test_a_chat_is_worked_in_order_by_one_drain_at_a_time(play: Play) -> None:
    """Also what arrives while a drain runs; nothing is left behind, and each claim has its own token."""

    async def scene(site: Site) -> None:
        worker = Worker("b")
        async with site.serving(worker) as dispatch:
            assert await accept(dispatch, "a", "b", "c") == [True, True, True]
            await site.quiet()
            assert worker.done == ["a"]
            await accept(dispatch, "d")
            worker.gates["b"].set()
            await site.quiet()
            await accept(dispatch, "e")
            await site.quiet()
        assert worker.done == ["a", "b", "c", "d", "e"]
        assert worker.most == 1
        assert len(set(worker.epochs)) == len(worker.epochs) == 2
        assert await waiting(site) == []

    play(scene)


def test_one_chat_never_waits_for_another(play: Play) -> None:
    """While one is held up, the other is answered."""

    async def scene(site: Site) -> None:
        worker = Worker("slow")
        async with site.serving(worker) as dispatch:
            await accept(dispatch, "slow", "behind")
            await accept(dispatch, "quick", chat=OTHER)
            await site.quiet()
            assert worker.done == ["quick"]
            worker.gates["slow"].set()
            await site.quiet()
        assert worker.done == ["quick", "slow", "behind"]

    play(scene)


def test_an_item_that_arrives_as_the_drain_ends_is_not_left_lying(play: Play) -> None:
    """The drain has looked for the last time; the next one takes what came after."""

    async def scene(site: Site) -> None:
        done: list[str] = []

        async def drain(claim: Claim) -> None:
            for item in await claim.pending():
                take(claim, item)
                done.append(item.key)
            if done == ["a"]:
                await accept(dispatch, "b")

        async with site.serving(drain) as dispatch:
            await accept(dispatch, "a")
            await site.quiet()
        assert done == ["a", "b"]

    play(scene)


def test_a_reset_waits_in_the_same_row(play: Play) -> None:
    """It is an item like a message: seen once, in its place, gone once it is carried out."""

    async def scene(site: Site) -> None:
        worker = Worker()
        async with site.serving(worker) as dispatch:
            await accept(dispatch, "a")
            assert await dispatch.accept(CHAT, Reset(ALICE, "r", 1.0))
            assert not await dispatch.accept(CHAT, Reset(ALICE, "r", 1.0))
            await accept(dispatch, "b")
            await site.quiet()
        assert worker.done == ["a", "r", "b"]
        assert await waiting(site) == []

    play(scene)


# -- what comes twice ----------------------------------------------------------------------------------------


def test_what_comes_twice_is_worked_once(play: Play) -> None:
    """Known by its key: while it waits, while it is worked, and afterwards."""

    async def scene(site: Site) -> None:
        worker = Worker("a")
        async with site.serving(worker) as dispatch:
            assert await accept(dispatch, "a", "a", "b", "b") == [True, False, True, False]
            await site.quiet()
            assert await accept(dispatch, "a") == [False]
            worker.gates["a"].set()
            await site.quiet()
            assert await accept(dispatch, "a", "b") == [False, False]
            await site.quiet()
        assert worker.done == ["a", "b"]

    play(scene)


def test_what_comes_again_after_a_restart_is_worked_once(play: Play) -> None:
    """Whether it was answered before or waits still, and even before the new process serves."""

    async def scene(site: Site) -> None:
        worker = Worker()
        async with site.serving(worker) as dispatch:
            await accept(dispatch, "answered")
            await site.quiet()
        await accept(dispatch, "waits")
        dispatch = site.host()
        assert await accept(dispatch, "answered", "waits", "new") == [False, False, True]
        async with served(dispatch, worker):
            assert await accept(dispatch, "answered", "waits", "new") == [False, False, False]
            await site.quiet()
        assert worker.done == ["answered", "waits", "new"]

    play(scene)


class SlowLedger(MemoryLedger):
    """Its answers are true when they are given, and take some passes of the loop to arrive, as from a thread."""

    async def seen(self, limit: int) -> Sequence[str]:
        return await slowly(await super().seen(limit))

    async def backlog(self) -> Sequence[Item]:
        return await slowly(await super().backlog())


T = TypeVar("T")


async def slowly(answer: T) -> T:
    for _ in range(5):
        await asyncio.sleep(0)
    return answer


def test_early_messages_keep_their_order_while_the_record_is_read() -> None:
    """Whatever comes before it is known what was seen: accepted in its turn, and once."""

    async def scene() -> None:
        ledger, worker = SlowLedger(), Worker()
        dispatch = EmbeddedDispatch(ledger, FakeClock())
        first = [asyncio.create_task(dispatch.accept(CHAT, message(key))) for key in "abca"]
        while not first[0].done():
            await asyncio.sleep(0)
            first.append(asyncio.create_task(dispatch.accept(CHAT, message(f"d{len(first)}"))))
        answers = await asyncio.gather(*first)
        async with served(dispatch, worker):
            await settle()
        assert answers[:4] == [True, True, True, False]
        assert worker.done == ["a", "b", "c", *(f"d{number}" for number in range(4, len(first)))]
        assert len(first) > 8
        await ledger.close()

    asyncio.run(scene())


def test_the_memory_of_keys_is_bounded() -> None:
    """The newest are known, the oldest forgotten: a repeated id, long afterwards, is a new message."""

    async def scene() -> None:
        ledger = MemoryLedger()
        rows = [(f"old {number}", CHAT, "message", "", "t") for number in range(SEEN)]
        ledger.db.executemany("INSERT INTO inbox (key, chat, kind, event, taken) VALUES (?, ?, ?, ?, ?)", rows)
        dispatch = EmbeddedDispatch(ledger, FakeClock())
        assert await accept(dispatch, "old 0", "old 1", "new", "old 0", "old 2") == [False, False, True, True, False]
        await ledger.close()

    asyncio.run(scene())


# -- the backlog ---------------------------------------------------------------------------------------------


def test_what_comes_before_serving_waits(play: Play) -> None:
    """Nothing is lost while the plugins are still being loaded."""

    async def scene(site: Site) -> None:
        dispatch, worker = site.host(), Worker()
        assert await accept(dispatch, "a", "b") == [True, True]
        await site.quiet()
        assert worker.done == []
        async with served(dispatch, worker):
            await site.quiet()
        assert worker.done == ["a", "b"]

    play(scene)


def test_what_an_earlier_process_left_is_taken_up_first(play: Play) -> None:
    """In order, before what has come early in this process; what was taken is not taken again."""

    async def scene(site: Site) -> None:
        worker = Worker("taken")
        async with site.serving(worker) as dispatch:
            await accept(dispatch, "taken", "left 1", "left 2")
            await accept(dispatch, "left 3", chat=OTHER)
            await site.quiet()
            site.ledger.append(Accepted(Item(OTHER, "left 4", message("left 4"))))  # and then it died
        assert await waiting(site) == ["left 1", "left 2", "left 4"]
        again, dispatch = Worker(), site.host()
        await accept(dispatch, "early")
        async with served(dispatch, again):
            await site.quiet()
        assert [key for key in again.done if key != "left 4"] == ["turn/turn of taken", "left 1", "left 2", "early"]
        assert "left 4" in again.done

    play(scene)


def test_a_turn_that_was_left_open_stands_before_all_that_waits(play: Play) -> None:
    """It comes as an item of its own, once; when it is closed it does not come again."""

    async def scene(site: Site) -> None:
        stuck = Worker("open")
        async with site.serving(stuck) as dispatch:
            await accept(dispatch, "open", "left")
            await site.quiet()
        assert stuck.ended == ["open: shutdown"]
        for wanted in (["turn/turn of open", "left"], []):
            again = Worker()
            async with site.serving(again):
                pass
            assert again.done == wanted

    play(scene)


def test_what_was_left_waits_for_its_account(play: Play) -> None:
    """Without the socket no answer could be sent; a new message of the chat shows that it is there."""

    async def scene(site: Site) -> None:
        for key, chat in (("a", CHAT), ("b", OTHER)):
            site.ledger.append(Accepted(Item(chat, key, message(key))))
        worker, dispatch = Worker(), site.host()
        task = asyncio.create_task(dispatch.serve(worker))
        await site.quiet()
        async with dispatch.attach("2000", mute):
            await site.quiet()
            assert worker.done == []
        await accept(dispatch, "new")
        await site.quiet()
        assert worker.done == ["a", "new"]
        async with dispatch.attach("1000", mute):
            await site.quiet()
        assert worker.done == ["a", "new", "b"]
        task.cancel()
        await asyncio.wait([task])

    play(scene)


def test_a_drain_hears_what_comes_while_it_works(play: Play) -> None:
    """Each time with all that waits, in order."""

    async def scene(site: Site) -> None:
        heard: list[list[str]] = []

        class Listener(Worker):
            async def __call__(self, claim: Claim) -> None:
                claim.listen(lambda items: heard.append([item.key for item in items]))
                await super().__call__(claim)

        worker = Listener("a")
        async with site.serving(worker) as dispatch:
            await accept(dispatch, "a")
            await site.quiet()
            await accept(dispatch, "b", "c")
            await accept(dispatch, "elsewhere", chat=OTHER)
            worker.gates["a"].set()
            await site.quiet()
        assert heard == [["b"], ["b", "c"]]

    play(scene)


def test_what_comes_while_the_backlog_is_read_is_neither_lost_nor_doubled() -> None:
    """At whatever moment of the start it comes, it is worked once, in its order."""

    async def scene() -> None:
        ledger, worker = SlowLedger(), Worker()
        dispatch = EmbeddedDispatch(ledger, FakeClock())
        ledger.append(Accepted(Item(CHAT, "left", message("left"))))
        assert await accept(dispatch, "early") == [True]
        async with served(dispatch, worker):
            for number in range(10, 40):
                await asyncio.sleep(0)  # one pass of the loop further into the start
                await accept(dispatch, f"k{number}")
            await settle()
        assert worker.done == ["left", "early", *(f"k{number}" for number in range(10, 40))]
        await ledger.close()

    asyncio.run(scene())


# -- cancelling ----------------------------------------------------------------------------------------------


def test_cancel_ends_what_runs_and_the_next_goes_on(play: Play) -> None:
    """The drain learns the reason; the next drain starts without it; the other chat notices nothing."""

    async def scene(site: Site) -> None:
        worker = Worker("a", "b", "elsewhere")
        async with site.serving(worker) as dispatch:
            await accept(dispatch, "a", "b")
            await accept(dispatch, "elsewhere", chat=OTHER)
            await site.quiet()
            assert await dispatch.cancel(CHAT, "stop")
            await site.quiet()
            assert worker.ended == ["a: stop"]
            worker.gates["b"].set()
            worker.gates["elsewhere"].set()
            await site.quiet()
        assert worker.done == ["b", "elsewhere"]
        assert worker.ended == ["a: stop"]
        assert worker.born == {""}
        assert await waiting(site) == []

    play(scene)


def test_cancel_says_when_nothing_runs(play: Play) -> None:
    """False for a chat that nobody knows, for one whose work is done, and before anything is served."""

    async def scene(site: Site) -> None:
        async with site.serving(Worker()) as dispatch:
            assert not await dispatch.cancel(CHAT, "stop")
            await accept(dispatch, "a")
            await site.quiet()
            assert not await dispatch.cancel(CHAT, "stop")
        dispatch = site.host()
        await accept(dispatch, "b")
        assert not await dispatch.cancel(CHAT, "stop")

    play(scene)


def test_cancel_in_the_same_moment_as_the_message_is_not_lost(play: Play) -> None:
    """A drain that has not even begun learns of it too; the chat lives on."""

    async def scene(site: Site) -> None:
        worker = Worker("a")
        async with site.serving(worker) as dispatch:
            await accept(dispatch, "a")
            assert await dispatch.cancel(CHAT, "stop")
            await site.quiet()
            assert worker.ended == ["a: stop"]
            await accept(dispatch, "b")
            await site.quiet()
        assert worker.done == ["b"]

    play(scene)


def test_what_was_called_off_before_it_was_taken_stays_off(play: Play) -> None:
    """After "stopped" nobody gets the answer after all; the record keeps the message, and the next one is worked."""

    async def scene(site: Site) -> None:
        begun: list[str] = []

        async def drain(claim: Claim) -> None:
            [item, *_] = await claim.pending()
            begun.append(item.key)
            if item.key == "a":
                await asyncio.Event().wait()
            take(claim, item)

        async with site.serving(drain) as dispatch:
            await accept(dispatch, "a", "b")
            await site.quiet()
            assert await dispatch.cancel(CHAT, "stop")
            await site.quiet()
        assert begun == ["a", "b"]
        assert await waiting(site) == ["a"]

    play(scene)


def test_cancel_as_the_drain_ends_is_too_late(play: Play) -> None:
    """Between the end of the drain and the next one nothing runs, and nothing that is new is called off."""

    async def scene(site: Site) -> None:
        worker = Worker("a")
        async with site.serving(worker) as dispatch:
            await accept(dispatch, "a")
            await site.quiet()
            worker.gates["a"].set()
            while worker.done != ["a"]:
                await asyncio.sleep(0)
            await accept(dispatch, "b")
            assert not await dispatch.cancel(CHAT, "stop")
            await site.quiet()
        assert worker.done == ["a", "b"]

    play(scene)


# -- drains that break ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("a bug"), LedgerFault("the disk is full"), None], ids=str)
def test_an_item_that_nobody_takes_neither_loops_nor_stops_the_chat(
    play: Play, error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The drain breaks, or just returns, before it takes the item: that is tried once, and the next goes on."""

    async def scene(site: Site) -> None:
        tried: list[str] = []

        async def drain(claim: Claim) -> None:
            [item, *_] = await claim.pending()
            tried.append(item.key)
            if item.key != "bad":
                take(claim, item)
            elif error:
                raise error

        async with site.serving(drain) as dispatch:
            await accept(dispatch, "good", "bad", "better")
            await site.quiet()
            assert tried == ["good", "bad", "better"]
            assert await accept(dispatch, "best", "bad") == [True, False]
            await site.quiet()
        assert tried == ["good", "bad", "better", "best"]
        assert await waiting(site) == ["bad"]

    play(scene, errors=[f"chat {CHAT}: {error}"] if error else [])
    assert all(bool(record.exc_info) == isinstance(error, RuntimeError) for record in caplog.records)


def test_a_drain_that_breaks_after_taking_loses_nothing_else(play: Play) -> None:
    """The next item is the next drain's first."""

    async def scene(site: Site) -> None:
        done: list[str] = []

        async def drain(claim: Claim) -> None:
            for item in await claim.pending():
                take(claim, item)
                if item.key == "bad":
                    raise RuntimeError("a bug")
                done.append(item.key)

        async with site.serving(drain) as dispatch:
            await accept(dispatch, "a", "bad", "c")
            await site.quiet()
        assert done == ["a", "c"]
        assert await waiting(site) == []

    play(scene, errors=[f"chat {CHAT}: a bug"])


def test_an_idle_chat_costs_nothing() -> None:
    """A thousand chats that were answered, and as many timers that rang, leave nothing in memory but their keys."""

    async def scene() -> None:
        site = Site()
        async with site.serving(Worker()) as dispatch:
            for number in range(1000):
                chat = ConversationId(f"chat {number}")
                await accept(dispatch, f"k{number}", chat=chat)
                await dispatch.at(0.0, chat, message(f"t{number}"))
            await site.quiet()
            assert isinstance(dispatch, EmbeddedDispatch)
            assert (len(dispatch._boxes), len(dispatch._timers)) == (0, 0)
        await site.ledger.close()

    asyncio.run(scene())


# -- timers --------------------------------------------------------------------------------------------------


def test_a_timer_rings_at_its_time_and_once(play: Play) -> None:
    """Not a moment before; as an item of its chat; not again after a restart."""

    async def scene(site: Site) -> None:
        worker = Worker()
        async with site.serving(worker) as dispatch:
            await dispatch.at(site.clock.now() + 60, CHAT, message("ring"))
            await site.clock.advance(59.9)
            assert worker.done == []
            await site.clock.advance(0.2)
            assert worker.done == ["ring"]
        async with site.serving(worker):
            await site.clock.advance(1000)
        assert worker.done == ["ring"]
        assert await site.ledger.timers() == []

    play(scene)


def test_a_second_timer_of_a_key_replaces_the_first(play: Play) -> None:
    """It rings once, as it was said last: sooner or later, and with that message."""

    async def scene(site: Site) -> None:
        worker = Worker()
        async with site.serving(worker) as dispatch:
            now = site.clock.now()
            await dispatch.at(now + 10, CHAT, message("later"))
            await dispatch.at(now + 50, CHAT, message("later", "the second word"))
            await dispatch.at(now + 90, CHAT, message("sooner"))
            await dispatch.at(now + 20, CHAT, message("sooner", "the first word"))
            await site.clock.advance(30)
            assert worker.done == ["sooner"]
            await site.clock.advance(100)
        assert worker.done == ["sooner", "later"]
        assert worker.texts == ["the first word", "the second word"]

    play(scene)


def test_a_dropped_timer_does_not_ring(play: Play) -> None:
    """Neither in this process nor in the next; dropping what does not exist is no fault."""

    async def scene(site: Site) -> None:
        worker = Worker()
        async with site.serving(worker) as dispatch:
            await dispatch.at(site.clock.now() + 10, CHAT, message("ring"))
            await dispatch.drop("ring")
            await dispatch.drop("nobody knows it")
            await site.clock.advance(20)
        async with site.serving(worker):
            await site.clock.advance(20)
        assert worker.done == []

    play(scene)


def test_a_timer_survives_its_process(play: Play) -> None:
    """One that fell due meanwhile rings at once; the others at their time; all can still be dropped and replaced."""

    async def scene(site: Site) -> None:
        worker = Worker()
        async with site.serving(worker) as dispatch:
            now = site.clock.now()
            for key, seconds in (("missed", 10), ("dropped", 100), ("moved", 100), ("kept", 100)):
                await dispatch.at(now + seconds, CHAT, message(key))
        await site.clock.advance(20)
        assert worker.done == []
        dispatch = site.host()
        await dispatch.drop("dropped")
        async with served(dispatch, worker):
            await site.quiet()
            assert worker.done == ["missed"]
            await dispatch.at(now + 30, CHAT, message("moved"))
            await site.clock.advance(15)
            assert worker.done == ["missed", "moved"]
            await site.clock.advance(200)
        assert worker.done == ["missed", "moved", "kept"]

    play(scene)


def test_a_timer_for_a_message_that_came_already_is_silent(play: Play) -> None:
    """A key is worked once, whichever way it comes; the timer is done with all the same."""

    async def scene(site: Site) -> None:
        worker = Worker()
        async with site.serving(worker) as dispatch:
            await dispatch.at(site.clock.now() + 10, CHAT, message("a"))
            await accept(dispatch, "a")
            await site.clock.advance(20)
        assert worker.done == ["a"]
        assert await site.ledger.timers() == []

    play(scene)


def test_no_timer_rings_after_the_end(play: Play) -> None:
    """It stays in the record for the next process."""

    async def scene(site: Site) -> None:
        worker = Worker()
        async with site.serving(worker) as dispatch:
            await dispatch.at(site.clock.now() + 10, CHAT, message("a"))
        await site.clock.advance(20)
        assert await waiting(site) == []
        assert [timer.item.key for timer in await site.ledger.timers()] == ["a"]

    play(scene)


# -- accounts ------------------------------------------------------------------------------------------------


def test_the_newest_attachment_of_an_account_speaks(play: Play) -> None:
    """When it goes, the older one speaks again; then nobody does, and the caller is told that nothing was sent."""

    async def scene(site: Site) -> None:
        dispatch = site.host()

        def sender(name: str) -> Callable[[Action], Awaitable[Delivery]]:
            async def send(action: Action) -> Delivery:
                return Sent(f"{name} {action.name}")

            return send

        poke = Action("poke")
        async with dispatch.attach("1000", sender("old")):
            assert await dispatch.call("1000", poke) == Sent("old poke")
            async with dispatch.attach("1000", sender("new")), dispatch.attach("2000", sender("other")):
                assert await dispatch.call("1000", poke) == Sent("new poke")
                assert await dispatch.call("2000", poke) == Sent("other poke")
            assert await dispatch.call("1000", poke) == Sent("old poke")
            assert await dispatch.call("2000", poke) == NotSent("account 2000 is not connected")
        assert await dispatch.call("1000", poke) == NotSent("account 1000 is not connected")

    play(scene)


def test_an_older_socket_may_go_first(play: Play) -> None:
    """A reconnect overlaps: the old socket ends after the new one began, and the new one goes on speaking."""

    async def scene(site: Site) -> None:
        dispatch = site.host()

        async def old(action: Action) -> Delivery:
            return SendUnknown("the old socket")

        async def new(action: Action) -> Delivery:
            return Sent("new")

        first, second = dispatch.attach("1000", old), dispatch.attach("1000", new)
        await first.__aenter__()
        await second.__aenter__()
        await first.__aexit__(None, None, None)
        assert await dispatch.call("1000", Action("poke")) == Sent("new")
        await second.__aexit__(None, None, None)
        assert isinstance(await dispatch.call("1000", Action("poke")), NotSent)

    play(scene)


def test_the_embedded_dispatch_knows_its_accounts() -> None:
    """As long as one of its sockets is held."""

    async def scene() -> None:
        site = Site()
        dispatch = EmbeddedDispatch(site.ledger, site.clock)

        async def send(action: Action) -> Delivery:
            return Sent()

        async with dispatch.attach("1000", send):
            async with dispatch.attach("1000", send), dispatch.attach("2000", send):
                assert list(dispatch.accounts) == ["1000", "2000"]
            assert list(dispatch.accounts) == ["1000"]
        assert list(dispatch.accounts) == []
        await site.ledger.close()

    asyncio.run(scene())


# -- shutdown ------------------------------------------------------------------------------------------------


def test_shutdown_cancels_what_runs_and_keeps_what_waits(play: Play) -> None:
    """Each drain learns that it is the shutdown; what no turn has taken is there for the next process."""

    async def scene(site: Site) -> None:
        worker = Worker("a", "b")
        async with site.serving(worker) as dispatch:
            await accept(dispatch, "a", "waits 1")
            await accept(dispatch, "b", "waits 2", chat=OTHER)
            await site.quiet()
        assert sorted(worker.ended) == ["a: shutdown", "b: shutdown"]
        assert await accept(dispatch, "late") == [True]
        await site.quiet()
        assert worker.done == []
        assert await waiting(site) == ["waits 1", "waits 2", "late"]
        again = Worker()
        async with site.serving(again):
            pass
        left = [key for key in again.done if not key.startswith("turn/")]
        assert sorted(left) == ["late", "waits 1", "waits 2"]

    play(scene)


def test_cancelled_drains_get_a_grace(play: Play) -> None:
    """Serving ends when they have written down how they ended; one that does not hear is waited for so long only."""

    async def scene(site: Site) -> None:
        told: list[str] = []
        deaf = asyncio.Event()

        async def drain(claim: Claim) -> None:
            [item] = await claim.pending()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await site.clock.sleep(GRACE / 2)
                take(claim, item)
                told.append(claim.cancelled)
                if item.key == "deaf":
                    await deaf.wait()

        dispatch = site.host()
        serve = asyncio.create_task(dispatch.serve(drain))
        await accept(dispatch, "a")
        await accept(dispatch, "deaf", chat=OTHER)
        await site.quiet()
        serve.cancel()
        await site.clock.advance(GRACE * 0.9)
        assert told == ["shutdown", "shutdown"]
        assert not serve.done()
        await site.clock.advance(GRACE * 0.2)
        assert serve.cancelled()
        deaf.set()
        await site.quiet()

    play(scene, errors=["some turns did not end within 2 s of being cancelled"])
