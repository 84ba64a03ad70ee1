"""Health, as a dialogue: crashes, refusals, tries and returns. The clock is moved by hand."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from kernel.breaker import (
    MAX_MARKS,
    MAX_WHY,
    STANDARD,
    Action,
    Admitted,
    Crash,
    Disabled,
    Elapsed,
    Frozen,
    HalfOpen,
    Healthy,
    Mark,
    Probation,
    Probe,
    Quarantined,
    Reloading,
    State,
    Word,
    freeze,
    remaining,
    step,
    thaw,
)
from kernel.errors import Misuse
from kernel.health import MAX_KEYS, Change, HealthRegistry, Permit, Refusal, Row, Saved


@dataclass
class Hands:
    """A clock that is moved by hand; health has no timer, so nobody may sleep on it."""

    mono: float = 1000.0
    wall: float = 1_700_000_000.0

    def now(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.mono

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"slept {seconds}")

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        raise AssertionError(f"set a timeout of {seconds}")

    def go(self, seconds: float) -> None:
        self.mono += seconds
        self.wall += seconds


@dataclass
class World:
    """A registry with one plugin `p` that has the tools a, b, c; what it says to the outside is kept."""

    clock: Hands = field(default_factory=Hands)
    jitter: Callable[[], float] = lambda: 0.0
    reloads: bool = True
    changes: list[Change] = field(default_factory=list)
    asked: list[tuple[str, int]] = field(default_factory=list)
    door: HealthRegistry = field(init=False)

    def __post_init__(self) -> None:
        self.door = self.registry()
        self.door.register("p", ["a", "b", "c"], reloads=self.reloads)

    def registry(self) -> HealthRegistry:
        return HealthRegistry(
            self.clock,
            jitter=self.jitter,
            on_change=self.changes.append,
            reload=lambda plugin, token: self.asked.append((plugin, token)),
        )

    def ask(self, tool: str = "a", chat: str = "A", user: str = "Ann", deadline: float = 10.0) -> Permit | Refusal:
        return self.door.admit("p", tool, chat, user, deadline=deadline)

    def permit(self, tool: str = "a", chat: str = "A", user: str = "Ann", deadline: float = 10.0) -> Permit:
        answer = self.ask(tool, chat, user, deadline)
        assert isinstance(answer, Permit), answer
        return answer

    def refusal(self, tool: str = "a", chat: str = "A", user: str = "Ann") -> Refusal:
        answer = self.ask(tool, chat, user)
        assert isinstance(answer, Refusal)
        return answer

    def crash(self, tool: str = "a", chat: str = "A", user: str = "Ann", *, times: int = 1) -> None:
        for _ in range(times):
            self.permit(tool, chat, user).crashed("ValueError: x", "p.py:7")

    def open_for_all(self, tool: str = "a") -> None:
        self.crash(tool, "A", "Ann", times=2)
        self.crash(tool, "B", "Bob")

    def trip_plugin(self) -> None:
        self.permit("c").crashed("Died: signal 11", "", fatal=True)

    def answer_reload(self, error: str | None = None) -> None:
        self.door.reloaded("p", self.asked[-1][1], error, "p.py:1")

    def half_open(self) -> None:
        """Trip the plugin and bring it as far as one try."""
        self.trip_plugin()
        self.clock.go(30)
        self.door.tick()
        self.answer_reload()

    def probation(self) -> None:
        self.half_open()
        self.permit().succeeded()

    def row(self, tool: str = "", chat: str = "") -> Row:
        return next(row for row in self.door.report() if (row.plugin, row.tool, row.chat) == ("p", tool, chat))


def nothing(_: Change) -> None:
    """For registries whose changes nobody reads."""


# -- the trip ------------------------------------------------------------------------------------------------


def test_the_third_crash_refuses_the_very_next_call() -> None:
    """Three crashes in the window, and 0.1 s later the call is refused, with the seconds left and the reason."""
    world = World()
    world.crash(times=3)
    world.clock.go(0.1)
    refusal = world.refusal()
    assert refusal.what == "a"
    assert refusal.seconds == pytest.approx(29.9)
    assert refusal.why == "3 crashes in 60 s, last: ValueError"


def test_last_reload_is_the_moment_of_the_trip() -> None:
    """A trip sets last_reload and the deadline in the same value: never None, never zero, never an older moment."""
    world = World()
    world.clock.go(500)
    world.crash(times=3)
    change = world.changes[-1]
    assert change.after == Quarantined(
        k=1, last_reload=1500.0, open_until=1530.0, why="3 crashes in 60 s, last: ValueError"
    )
    assert world.row("a", "A").last_reload == world.clock.wall


def test_a_quarantine_cannot_be_built_without_its_times() -> None:
    """No state that needs a time has a default for it."""
    for state in (Quarantined, Reloading, Probation, Probe):
        with pytest.raises(TypeError):
            state()
    for state in (Healthy, HalfOpen, Disabled):
        with pytest.raises(TypeError, match="last_reload"):
            state()


def test_nothing_reaches_the_tool_before_the_cool_down_is_over() -> None:
    """Every call before open_until is refused and moves no timestamp; the first one at it passes."""
    world = World()
    world.crash(times=3)
    before = world.row("a", "A")
    for _ in range(29):
        world.clock.go(1)
        assert world.refusal().seconds == pytest.approx(1030 - world.clock.mono)
    after = world.row("a", "A")
    assert (after.k, after.last_reload) == (before.k, before.last_reload)
    world.clock.go(1)
    world.permit().succeeded()


def test_two_crashes_refuse_nothing() -> None:
    """Under the threshold a tool stays callable, and the report counts."""
    world = World()
    world.crash(times=2)
    world.permit().succeeded()
    row = world.row("a")
    assert (row.state, row.crashes, row.limit) == (Word.HEALTHY, 2, 3)
    assert (row.error, row.where) == ("ValueError: x", "p.py:7")


def test_the_window_slides() -> None:
    """What counts is crashes within the window, not the gap since the last one; a success does not forgive."""
    world = World()
    for _ in range(6):
        world.crash()
        world.clock.go(40)
    assert world.row("a").crashes == 1
    world.crash()
    world.permit().succeeded()
    world.clock.go(10)
    world.crash()
    assert world.refusal().why == "3 crashes in 60 s, last: ValueError"


@pytest.mark.parametrize(("last", "trips"), [(59.75, True), (60.0, False)])
def test_the_edge_of_the_window(last: float, trips: bool) -> None:
    """A crash counts for less than the window's length: exactly 60 s later it is gone."""
    world = World()
    world.crash()
    world.clock.go(last)
    assert world.row("a").crashes == (1 if trips else 0)
    world.crash(times=2)
    assert isinstance(world.ask(), Refusal) is trips


def test_a_slow_tool_that_always_times_out_trips() -> None:
    """The window is at least four of the tool's deadlines."""
    world = World()
    for _ in range(3):
        permit = world.permit(deadline=100.0)
        world.clock.go(100)
        permit.crashed("TimedOut", "")
    assert world.refusal().why == "3 crashes in 400 s, last: TimedOut"


def test_what_is_no_crash_never_changes_a_healthy_tool() -> None:
    """Successes, tool errors and cancellations leave no trace, not even between crashes."""
    world = World()
    world.crash(times=2)
    before = world.door.report()
    for _ in range(5):
        world.permit().succeeded()
        world.permit().tool_error()
        world.permit().cancelled()
    assert world.door.report() == before
    assert world.changes == []


def test_a_refusal_does_not_quote_another_chat() -> None:
    """A crash's message may hold what was said where it happened: others read its type only."""
    world = World()
    world.permit("a", "A", "Ann").crashed("KeyError: 'my PIN is 1234'", "p.py:7")
    world.permit("a", "A", "Ann").crashed("KeyError: 'my PIN is 1234'", "p.py:7")
    world.permit("a", "B", "Bob").crashed("KeyError: 'my PIN is 1234'", "p.py:7")
    assert world.refusal("a", "C", "Cid").why == "3 crashes in 60 s, last: KeyError"
    assert world.row("a").error == "KeyError: 'my PIN is 1234'"


# -- the scope -----------------------------------------------------------------------------------------------


def test_a_chat_alone_is_refused_alone() -> None:
    """One member who crashes a tool switches it off where he is, at once, and nowhere else."""
    world = World()
    world.crash("a", "A", "Ann", times=3)
    assert world.refusal("a", "A", "Bob").what == "a"
    world.permit("a", "B", "Bob").succeeded()
    world.permit("b", "A", "Ann").succeeded()


def test_many_members_of_one_chat_are_one_chat() -> None:
    """Crashes of different users in the same chat open the tool for that chat only."""
    world = World()
    for user in ("Ann", "Bob", "Cid"):
        world.crash("a", "A", user)
    world.refusal("a", "A", "Dan")
    world.permit("a", "B", "Dan").succeeded()


def test_one_user_in_many_chats_is_one_user() -> None:
    """The same user's crashes in several chats never open the tool for the others."""
    world = World()
    for chat in ("A", "B", "C", "D"):
        world.crash("a", chat, "Ann", times=2)
    world.permit("a", "E", "Bob").succeeded()
    for chat in ("A", "B"):
        world.crash("a", chat, "Ann")
        world.refusal("a", chat, "Ann")
    world.permit("a", "E", "Bob").succeeded()


def test_a_second_chat_opens_the_tool_for_all() -> None:
    """When another user crashes it in another chat too, every chat is refused, also one that never called it."""
    world = World()
    world.crash("a", "A", "Ann", times=3)
    world.crash("a", "B", "Bob")
    assert world.refusal("a", "Z", "Zoe").what == "a"
    assert world.row("a").state is Word.QUARANTINED
    world.permit("b", "Z", "Zoe").succeeded()


def test_what_was_nobodys_call_counts_for_everybody() -> None:
    """A task or a hook that crashes three times is open in every chat."""
    world = World()
    for _ in range(3):
        world.door.crashed("p", "task:feed", "OSError: gone", "p.py:9")
    refusal = world.door.look("p", "task:feed", "Z")
    assert refusal == Refusal("task:feed", 30.0, "3 crashes in 60 s, last: OSError")
    world.permit("a").succeeded()


def test_two_open_tools_trip_the_plugin() -> None:
    """One open tool leaves the others alone; the second takes all with it."""
    world = World()
    world.open_for_all("a")
    world.permit("c").succeeded()
    world.open_for_all("b")
    assert world.refusal("c") == Refusal("p", 30.0, "2 of its tools are open: a, b")


def test_a_tool_that_rested_long_ago_does_not_help_to_trip() -> None:
    """Open counts while the quarantine runs: one that only waits for somebody to try it is not open."""
    world = World()
    world.open_for_all("a")
    world.clock.go(30)
    world.open_for_all("b")
    world.permit("c").succeeded()


def test_a_chats_quarantines_do_not_trip_the_plugin() -> None:
    """Tools that are open for one chat only are not open."""
    world = World()
    world.crash("a", "A", times=3)
    world.crash("b", "A", times=3)
    world.permit("c", "A").succeeded()


def test_a_chat_that_opens_does_not_count_the_open_tools_anew() -> None:
    """A plugin that has come back while two of its tools still rest is not tripped by a single chat."""
    world = World()
    resting = freeze(Quarantined(7, 990.0, 2800.0, "why"), world.clock.mono, world.clock.wall)
    world.door.restore([Saved(("p", tool), resting, "", "") for tool in "ab"])
    world.crash("c", "A", times=3)
    world.permit("c", "B").succeeded()


def test_a_fatal_crash_is_the_plugins() -> None:
    """A hang, a death or a call that would not stop trips the whole plugin at once."""
    world = World()
    world.trip_plugin()
    assert world.refusal("a", "Z", "Zoe") == Refusal("p", 30.0, "c: Died")
    assert world.changes[-1].after == Quarantined(1, 1000.0, 1030.0, "c: Died")


def test_a_fatal_crash_of_a_task_is_the_plugins() -> None:
    """It need not be a call that hangs the loop."""
    world = World()
    world.door.crashed("p", "task:spin", "Hang: 1.5 s", "p.py:3", fatal=True)
    assert world.refusal("a").why == "task:spin: Hang"
    assert (world.row().error, world.row().where) == ("Hang: 1.5 s", "p.py:3")


def test_a_childs_death_is_one_crash() -> None:
    """Each call in flight reports the death, and together they count once."""
    world = World()
    permits = [world.permit(tool, chat, chat) for tool in "abc" for chat in "ABC"]
    for permit in permits:
        permit.crashed("Died: signal 9", "", fatal=True)
    assert world.row().k == 1
    assert [change.after.k for change in world.changes] == [1]
    assert world.row("a").crashes == 0


# -- reloading -----------------------------------------------------------------------------------------------


def test_a_failed_load_is_quarantined_at_once() -> None:
    """With its reason for everybody and its file:line for the operator, though it never registered a tool."""
    world = World()
    world.door.load_failed("q", "SyntaxError: invalid syntax", "q.py:3")
    refusal = world.door.look("q", "any", "A")
    assert refusal == Refusal("q", 30.0, "failed to load: SyntaxError: invalid syntax")
    (row,) = (row for row in world.door.report() if row.plugin == "q")
    assert (row.state, row.k, row.where) == (Word.QUARANTINED, 1, "q.py:3")
    assert row.last_reload == world.clock.wall
    world.clock.go(30)
    world.door.tick()
    assert world.asked[-1][0] == "q"


def test_a_load_that_fails_while_reloading_answers_the_reload() -> None:
    """Whichever way the host says it, a failed reload raises k."""
    world = World()
    world.trip_plugin()
    world.clock.go(30)
    world.door.tick()
    world.door.load_failed("p", "ImportError: y", "p.py:1")
    assert world.refusal() == Refusal("p", 60.0, "failed to load: ImportError: y")
    world.answer_reload("its set-up failed")
    assert (world.row().k, world.row().error, world.row().where) == (2, "ImportError: y", "p.py:1")


def test_a_load_that_fails_after_the_cool_down_counts() -> None:
    """Though nobody has noticed yet that the rest was over."""
    world = World(reloads=False)
    world.trip_plugin()
    world.clock.go(31)
    world.door.load_failed("p", "ImportError: y", "p.py:1")
    assert world.refusal() == Refusal("p", 60.0, "failed to load: ImportError: y")


def test_two_callers_after_the_cool_down_start_one_reload() -> None:
    """The first finds it over and starts the reload; both are refused until that has ended."""
    world = World()
    world.trip_plugin()
    world.clock.go(30)
    assert world.refusal() == Refusal("p", 90.0, "reloading")
    assert world.refusal("b").why == "reloading"
    assert [plugin for plugin, _ in world.asked] == ["p"]
    assert world.row().last_reload == world.clock.wall


def test_the_timer_starts_the_reload_when_nobody_calls() -> None:
    """A hidden tool is not called, so `tick` has to do it; before the time it does nothing."""
    world = World()
    world.trip_plugin()
    world.clock.go(29.9)
    world.door.tick()
    assert world.asked == []
    world.clock.go(0.1)
    world.door.tick()
    world.door.tick()
    assert len(world.asked) == 1


def test_a_good_reload_is_tried_by_one_call() -> None:
    """It sets last_reload, renews the generation and lets exactly one call through."""
    world = World()
    old = world.permit().generation
    world.trip_plugin()
    world.clock.go(30)
    world.door.tick()
    world.clock.go(2)
    world.answer_reload()
    assert (world.row().state, world.row().last_reload) == (Word.HALF_OPEN, world.clock.wall)
    assert world.permit().generation > old


def test_a_failed_reload_doubles_the_cool_down() -> None:
    """k goes up and last_reload is the moment of the failure."""
    world = World()
    world.trip_plugin()
    world.clock.go(30)
    world.door.tick()
    world.clock.go(5)
    world.answer_reload("ImportError: y")
    row = world.row()
    assert (row.k, row.seconds, row.last_reload) == (2, 60.0, world.clock.wall)
    assert (row.error, row.where) == ("ImportError: y", "p.py:1")
    assert world.refusal().why == "failed to load: ImportError: y"


def test_a_reload_that_does_not_answer_fails_at_its_deadline() -> None:
    """After 90 s it counts as failed, as of that moment, and its answer comes too late."""
    world = World()
    world.trip_plugin()
    world.clock.go(30)
    world.door.tick()
    world.clock.go(100)
    world.answer_reload()
    assert world.refusal() == Refusal("p", 50.0, "reload not done in 90 s")
    assert world.row().k == 2


def test_an_answer_with_an_old_token_is_ignored() -> None:
    """A reload that was given up cannot end its successor, neither well nor badly."""
    world = World()
    world.trip_plugin()
    world.clock.go(30)
    world.door.tick()
    world.clock.go(90 + 60)
    world.door.tick()
    (_, old), (_, new) = world.asked
    assert old != new
    before = world.row()
    world.door.reloaded("p", old, None)
    assert world.row() == before
    world.door.reloaded("p", old, "ImportError: late")
    assert world.row() == before
    world.door.reloaded("p", new, None)
    assert world.row().state is Word.HALF_OPEN


def test_a_reload_leaves_nothing_of_the_old_copy() -> None:
    """The new copy's tools start clean; that the plugin is on trial is enough."""
    world = World()
    world.open_for_all("a")
    world.open_for_all("b")
    world.clock.go(30)
    world.door.tick()
    world.answer_reload()
    world.permit("c").succeeded()
    world.permit("a").succeeded()
    assert (world.row().state, world.row("a").state) == (Word.PROBATION, Word.HEALTHY)


def test_a_plugin_that_declines_reload_is_tried_as_it_is() -> None:
    """Its quarantine ends in one try, and its tools keep what is left of theirs."""
    world = World(reloads=False)
    world.open_for_all("a")
    world.clock.go(20)
    world.open_for_all("b")
    world.clock.go(30)
    world.permit("c").succeeded()
    assert world.asked == []
    assert world.row().state is Word.PROBATION


def test_a_plugins_short_rest_does_not_cut_its_tools_long_one() -> None:
    """A quarantine holds: the longest on the way to the call decides, and is what the refusal says."""
    world = World(reloads=False)
    world.open_for_all("a")
    world.clock.go(30)
    world.permit("a").crashed("ValueError: x", "")
    assert world.row("a").seconds == 60.0
    world.trip_plugin()
    assert (world.refusal("a").what, world.refusal("a").seconds) == ("a", 60.0)
    assert (world.refusal("b").what, world.refusal("b").seconds) == ("p", 30.0)
    world.clock.go(30)
    assert world.refusal("a") == Refusal("a", 30.0, "crashed again when tried: ValueError")
    assert world.row().state is Word.HALF_OPEN
    world.permit("c").succeeded()
    world.clock.go(30)
    world.permit("a").succeeded()


def test_a_tool_is_tried_without_a_reload() -> None:
    """Only plugin keys reload: of a tool or a chat the first call after the rest is the try."""
    world = World()
    world.open_for_all("a")
    world.crash("b", "A", times=3)
    world.clock.go(30)
    world.permit("a").succeeded()
    world.permit("b", "A").succeeded()
    assert world.asked == []
    assert (world.row("a").state, world.row("b", "A").state) == (Word.PROBATION, Word.PROBATION)


# -- the try -------------------------------------------------------------------------------------------------


def test_one_probe_among_many_callers() -> None:
    """Of ten callers at once one gets through; the others are told that it is being tried."""
    world = World()
    world.half_open()
    answers = [world.ask("abc"[n % 3], f"chat{n}") for n in range(10)]
    assert sum(isinstance(answer, Permit) for answer in answers) == 1
    refusals = [answer for answer in answers if isinstance(answer, Refusal)]
    assert set(refusals) == {Refusal("p", 10.0, "probing")}


@pytest.mark.parametrize("end", [Permit.succeeded, Permit.tool_error])
def test_a_probe_that_answers_lets_all_through(end: Callable[[Permit], None]) -> None:
    """A tool error is an answer as good as any."""
    world = World()
    world.half_open()
    end(world.permit())
    assert world.row().state is Word.PROBATION
    for n in range(3):
        world.permit("a", f"chat{n}").succeeded()


def test_a_probe_that_crashes_closes_the_door_again() -> None:
    """k goes up, and the cool-down doubles."""
    world = World()
    world.half_open()
    world.permit().crashed("ValueError: x", "p.py:7")
    assert world.refusal() == Refusal("p", 60.0, "crashed again when tried: ValueError")


def test_a_cancelled_probe_frees_its_slot() -> None:
    """Neither healed nor charged: the next caller is the probe."""
    world = World()
    world.half_open()
    world.permit().cancelled()
    assert (world.row().state, world.row().k) == (Word.HALF_OPEN, 1)
    world.permit().succeeded()
    assert world.row().state is Word.PROBATION


def test_leaving_the_block_gives_the_slot_back() -> None:
    """However it is left: by a cancellation, by an error of the host, or by simply forgetting to settle."""
    world = World()
    world.half_open()

    def leave(error: BaseException) -> None:
        with world.permit():
            world.refusal()
            raise error

    for error in (asyncio.CancelledError(), RuntimeError("ours")):
        with pytest.raises(type(error)):
            leave(error)
    with world.permit():
        pass
    with world.permit() as permit:
        permit.succeeded()
    assert world.row().state is Word.PROBATION


def test_a_permit_is_settled_once() -> None:
    """A second end is the kernel's own bug, also after the block, and changes nothing."""
    world = World()
    for first in (Permit.succeeded, Permit.tool_error, Permit.cancelled):
        permit = world.permit()
        first(permit)
        with pytest.raises(Misuse, match="p/a/A was settled twice"):
            permit.crashed("ValueError: x", "", fatal=True)
    with world.permit() as left:
        pass
    with pytest.raises(Misuse):
        left.succeeded()
    assert world.row().state is Word.HEALTHY


def test_a_lost_probe_fails_at_its_deadline() -> None:
    """A permit that never comes back is a crash as of its deadline, whoever notices it when."""
    world = World()
    world.half_open()
    lost = world.permit(deadline=10.0)
    world.clock.go(9.9)
    assert world.refusal().why == "probing"
    world.clock.go(0.1)
    assert world.refusal() == Refusal("p", 60.0, "the call that tried it never came back")
    assert world.row().last_reload == world.clock.wall
    lost.succeeded()
    assert world.row().state is Word.QUARANTINED


def test_a_probe_that_answers_too_late_is_lost() -> None:
    """Also when nobody has looked in between."""
    world = World()
    world.half_open()
    late = world.permit(deadline=10.0)
    world.clock.go(10)
    late.succeeded()
    assert (world.row().state, world.row().k) == (Word.QUARANTINED, 2)


def test_a_deadline_takes_effect_when_it_passes_not_when_somebody_looks() -> None:
    """A tool whose probe was lost is not refused once more because nobody asked for an hour."""
    world = World()
    world.open_for_all("a")
    world.clock.go(30)
    world.permit("a", deadline=10.0)
    world.clock.go(3600)
    assert world.door.look("p", "a", "A") is None
    world.permit("a").succeeded()
    assert world.row("a").k == 2


def test_an_older_calls_end_does_not_decide_the_try() -> None:
    """Only the probe's own end counts, not that of a call which was already under way."""
    world = World()
    slow, slower, slowest = (world.permit("a", "D", "Dan", deadline=500) for _ in range(3))
    world.open_for_all("a")
    world.clock.go(30)
    probe = world.permit("a")
    slow.succeeded()
    slower.crashed("ValueError: x", "")
    slowest.cancelled()
    assert world.refusal("a").why == "probing"
    probe.succeeded()
    assert world.row("a").state is Word.PROBATION


def test_what_is_no_call_fails_the_try() -> None:
    """A task of the plugin that crashes while the plugin is being tried puts it back."""
    world = World()
    world.half_open()
    world.door.crashed("p", "task:feed", "OSError: gone", "p.py:9")
    assert world.refusal().why == "crashed again when tried: OSError"


def test_what_is_no_call_fails_the_try_though_nobody_has_noticed_that_it_is_due() -> None:
    """A task runs without a permit, so its crash after the rest is its failed try."""
    world = World()
    for _ in range(3):
        world.door.crashed("p", "task:feed", "OSError: gone", "p.py:9")
    world.door.crashed("p", "task:feed", "OSError: gone", "p.py:9")
    assert world.row("task:feed").k == 1
    world.clock.go(30)
    world.door.crashed("p", "task:feed", "OSError: gone", "p.py:9")
    assert (world.row("task:feed").k, world.row("task:feed").seconds) == (2, 60.0)


def test_a_probe_of_a_fatal_end_frees_the_tools_slot_too() -> None:
    """The plugin is charged, and the tool that was being tried is not left waiting for an answer."""
    world = World(reloads=False)
    world.open_for_all("a")
    world.clock.go(30)
    world.permit("a").crashed("Died: signal 11", "", fatal=True)
    assert world.row().state is Word.QUARANTINED
    assert (world.row("a").state, world.row("a").k) == (Word.QUARANTINED, 2)


# -- probation -----------------------------------------------------------------------------------------------


def test_a_crash_on_probation_closes_the_door_again() -> None:
    """One is enough, and k goes up: no flapping."""
    world = World()
    world.probation()
    world.clock.go(599)
    world.permit("b", "Z", "Zoe").crashed("ValueError: x", "p.py:7")
    assert world.refusal() == Refusal("p", 60.0, "crashed again soon after: ValueError")


def test_a_fatal_crash_on_probation_closes_the_door_again() -> None:
    """Whatever part of the plugin it comes from."""
    world = World()
    world.probation()
    world.door.crashed("p", "task:spin", "Hang", "", fatal=True)
    assert world.refusal() == Refusal("p", 60.0, "task:spin: Hang")


def test_k_is_forgiven_after_stable_time_and_a_success() -> None:
    """Neither alone will do, and a tool error is no success."""
    world = World()
    world.probation()
    world.clock.go(599.9)
    world.permit().succeeded()
    assert (world.row().state, world.row().k) == (Word.PROBATION, 1)
    world.clock.go(0.1)
    world.door.tick()
    world.permit().tool_error()
    world.permit().cancelled()
    assert (world.row().state, world.row().k) == (Word.PROBATION, 1)
    world.permit().succeeded()
    assert (world.row().state, world.row().k) == (Word.HEALTHY, 0)


def test_the_cool_down_doubles_then_caps() -> None:
    """30 s, 60 s, … 1800 s; a trip in the thousands overflows nothing."""
    cool = [STANDARD.cool_down(k, 0.0) for k in range(1, 9)]
    assert cool == [30, 60, 120, 240, 480, 960, 1800, 1800]
    assert STANDARD.cool_down(5000, 0.0) == 1800


def test_failed_tries_double_the_cool_down() -> None:
    """The same through the door: each failed try makes the next rest twice as long."""
    world = World()
    world.open_for_all("a")
    rests = []
    for _ in range(8):
        rests.append(world.refusal("a").seconds)
        world.clock.go(rests[-1])
        world.permit("a").crashed("ValueError: x", "")
    assert rests == [30, 60, 120, 240, 480, 960, 1800, 1800]


def test_jitter_adds_up_to_a_tenth() -> None:
    """So that what broke together does not come back together; it only ever adds."""
    world = World(jitter=lambda: 1.0)
    world.open_for_all("a")
    assert world.refusal("a").seconds == pytest.approx(33)
    assert STANDARD.cool_down(20, 0.5) == pytest.approx(1890)


# -- generations ---------------------------------------------------------------------------------------------


def test_the_end_of_an_old_copys_call_changes_nothing() -> None:
    """After a reload, whatever the former copy's calls report is ignored, even on trial."""
    world = World()
    old = [world.permit("a", chat, chat) for chat in "ABCDEF"]
    world.probation()
    before = world.door.report()
    old[0].succeeded()
    old[1].tool_error()
    old[2].cancelled()
    old[3].crashed("ValueError: x", "")
    old[4].crashed("Died: signal 9", "", fatal=True)
    world.clock.go(600)
    old[5].succeeded()
    world.clock.go(-600)
    assert world.door.report() == before


def test_registering_again_is_a_new_generation() -> None:
    """The old copy's calls no longer count, nor do its crashes, nor does its probe hold the slot."""
    world = World()
    world.crash("a", times=2)
    old = world.permit("a")
    world.clock.go(1)
    world.door.register("p", ["a", "b"])
    old.crashed("ValueError: x", "")
    world.permit("a").succeeded()
    assert (world.row("a").crashes, world.row().last_reload) == (0, world.clock.wall)
    assert [row.tool for row in world.door.report()] == ["", "a", "b"]

    world.half_open()
    stale = world.permit("a")
    world.door.register("p", ["a"])
    fresh = world.permit("a")
    stale.succeeded()
    assert world.row().state is Word.HALF_OPEN
    fresh.succeeded()
    assert world.row().state is Word.PROBATION


def test_registering_again_frees_nothing() -> None:
    """Loading proves nothing: a quarantine, a running reload and a disabled plugin stay what they are."""
    world = World()
    world.open_for_all("a")
    world.door.register("p", ["a", "b", "c"])
    world.refusal("a")
    world.trip_plugin()
    world.door.register("p", ["a", "b", "c"])
    world.refusal("b")
    world.clock.go(30)
    world.door.tick()
    world.door.register("p", ["a", "b", "c"])
    assert world.refusal("b").why == "reloading"
    world.answer_reload()
    assert world.row().state is Word.HALF_OPEN
    world.door.disable("p")
    world.door.register("p", ["a", "b", "c"])
    assert world.refusal("b").why == "disabled"


def test_a_tool_that_the_new_copy_lacks_is_forgotten() -> None:
    """Its trouble goes with it and cannot help to trip the plugin."""
    world = World()
    world.open_for_all("a")
    world.door.register("p", ["b", "c"])
    world.open_for_all("b")
    world.permit("c").succeeded()
    assert {row.tool for row in world.door.report()} == {"", "b", "c"}


def test_what_is_forgotten_is_gone() -> None:
    """Late words about it are ignored; asking for it is the kernel's own bug."""
    world = World()
    late = world.permit()
    world.door.forget("p")
    late.crashed("ValueError: x", "", fatal=True)
    world.door.crashed("p", "task:feed", "OSError: gone", "")
    world.door.reloaded("p", 1, None)
    world.door.forget("p")
    assert world.door.report() == ()
    with pytest.raises(Misuse, match="'p'"):
        world.ask()
    for order in (world.door.reset, world.door.disable, world.door.enable, world.door.begin_reload):
        with pytest.raises(Misuse, match="'p'"):
            order("p")


# -- operators -----------------------------------------------------------------------------------------------


def test_reset_makes_callable_at_once() -> None:
    """From every state, with all tools and chats, k=0, a new generation, last_reload now, and a change to audit."""
    world = World()
    old = world.permit("c")
    world.open_for_all("a")
    world.trip_plugin()
    world.clock.go(5)
    world.door.reset("p")
    assert (world.row().state, world.row().k, world.row().last_reload) == (Word.HEALTHY, 0, world.clock.wall)
    assert isinstance(world.changes[-1].before, Quarantined)
    assert world.changes[-1].after == Healthy(world.clock.mono)
    old.crashed("Died: signal 9", "", fatal=True)
    new = world.permit("a")
    new.succeeded()
    assert new.generation > old.generation
    world.trip_plugin()
    assert world.row().k == 1


def test_reset_of_a_healthy_plugin_frees_its_tools() -> None:
    """It is the operator's word on all of it, and is told although the plugin itself was healthy."""
    world = World()
    world.crash("a", "A", times=3)
    told = len(world.changes)
    world.door.reset("p")
    world.permit("a", "A").succeeded()
    assert len(world.changes) == told + 1


def test_disabled_stays_until_enabled() -> None:
    """No time, tick, reload or crash ends it, and no seconds are promised; enabling makes it healthy and new."""
    world = World()
    inflight, inflight_too = world.permit(), world.permit()
    world.trip_plugin()
    world.clock.go(30)
    world.door.tick()
    world.door.disable("p")
    world.answer_reload()
    inflight.crashed("Died: signal 9", "", fatal=True)
    world.door.load_failed("p", "ImportError: y", "")
    world.clock.go(1e6)
    world.door.tick()
    assert world.refusal() == Refusal("p", 0.0, "disabled")
    world.door.enable("p")
    inflight_too.crashed("Died: signal 9", "", fatal=True)
    world.permit().succeeded()
    assert (world.row().k, world.row().last_reload) == (0, world.clock.wall)


def test_enable_frees_only_what_is_disabled() -> None:
    """Of a quarantined plugin it means nothing."""
    world = World()
    world.trip_plugin()
    world.door.enable("p")
    assert world.refusal().seconds == 30


def test_disabled_wins_over_any_seconds() -> None:
    """A refusal does not promise a time after which an operator still has to act."""
    world = World()
    world.open_for_all("a")
    world.door.disable("p")
    assert world.refusal("a") == Refusal("p", 0.0, "disabled")


def test_an_operators_reload_may_fail() -> None:
    """It goes to Reloading from anywhere, forgives k first, and is one at a time."""
    world = World(reloads=False)
    world.door.begin_reload("p")
    world.door.begin_reload("p")
    assert len(world.asked) == 1
    assert world.refusal().why == "reloading"
    world.answer_reload("ImportError: y")
    assert (world.row().state, world.row().k) == (Word.QUARANTINED, 1)
    world.clock.go(3)
    world.door.begin_reload("p")
    assert (world.row().k, world.row().last_reload) == (0, world.clock.wall)
    world.answer_reload()
    world.permit().succeeded()
    assert world.row().state is Word.PROBATION


def test_an_operators_reload_replaces_one_that_is_stuck() -> None:
    """After its deadline the old one no longer stands in the way, though nobody has noticed yet."""
    world = World()
    world.door.begin_reload("p")
    world.clock.go(90)
    world.door.begin_reload("p")
    assert len(world.asked) == 2
    world.door.reloaded("p", world.asked[0][1], None)
    assert world.row().state is Word.RELOADING
    world.answer_reload()
    assert world.row().state is Word.HALF_OPEN


def test_an_order_starts_no_reload_of_its_own() -> None:
    """To disable or reset what is just due for a reload does not load it."""
    for order in ("disable", "reset"):
        world = World()
        world.trip_plugin()
        world.clock.go(30)
        getattr(world.door, order)("p")
        assert world.asked == []


def test_a_reload_that_is_done_at_once_is_tried_at_once() -> None:
    """The reloader may answer before it returns; what was below the plugin is gone then."""
    world = World()
    world.door = HealthRegistry(
        world.clock,
        jitter=lambda: 0.0,
        on_change=world.changes.append,
        reload=lambda plugin, token: world.door.reloaded(plugin, token, None),
    )
    world.door.register("p", ["a", "b", "c"])
    world.open_for_all("a")
    world.trip_plugin()
    world.clock.go(30)
    world.permit("a").succeeded()
    assert (world.row().state, world.row("a").state) == (Word.PROBATION, Word.HEALTHY)


def test_nobody_reloads_where_nobody_can() -> None:
    """Without a reloader a plugin is tried as it is, and the operator's reload is the kernel's own bug."""
    clock = Hands()
    door = HealthRegistry(clock, jitter=lambda: 0.0, on_change=nothing, reload=None)
    door.register("p", ["a"])
    door.crashed("p", "task:spin", "Hang", "", fatal=True)
    clock.go(30)
    assert isinstance(door.admit("p", "a", "A", "Ann", deadline=1), Permit)
    with pytest.raises(Misuse, match="reload"):
        door.begin_reload("p")


# -- looking, time, memory -----------------------------------------------------------------------------------


def test_looking_changes_nothing_and_agrees_with_the_door() -> None:
    """At every moment of a bad day `look` says what `admit` then says, and leaves everything as it was."""
    world = World()

    def same(tool: str) -> None:
        before = (world.door.report(), len(world.asked), len(world.changes))
        seen = world.door.look("p", tool, "A")
        assert world.door.look("p", tool, "A") == seen
        assert (world.door.report(), len(world.asked), len(world.changes)) == before
        answer = world.ask(tool)
        assert answer == seen if isinstance(answer, Refusal) else seen is None
        if isinstance(answer, Permit):
            answer.cancelled()

    world.open_for_all("a")
    for _ in range(5):
        same("a")
        world.clock.go(10)
    world.trip_plugin()
    for _ in range(20):
        same("b")
        world.clock.go(10)
    world.answer_reload()
    world.permit("b")
    for _ in range(8):
        same("c")
        world.clock.go(2)
    assert world.refusal("c").why == "the call that tried it never came back"


def test_an_overdue_quarantine_has_no_seconds_left() -> None:
    """The report shows no negative time, though nobody has looked since the cool-down ended."""
    world = World()
    world.open_for_all("a")
    world.clock.go(500)
    assert (world.row("a").state, world.row("a").seconds) == (Word.QUARANTINED, 0.0)


def test_looking_at_nothing_known_sees_no_trouble() -> None:
    """So a host can ask before it loads a plugin."""
    assert World().door.look("unknown", "", "") is None


@pytest.mark.parametrize("jump", [1e6, -1e6])
def test_a_jump_of_the_wall_clock_decides_nothing(jump: float) -> None:
    """Only the monotonic clock decides: not a second is given or taken."""
    world = World()
    world.open_for_all("a")
    world.clock.wall += jump
    assert world.refusal("a").seconds == 30
    world.clock.go(29.5)
    assert world.refusal("a").seconds == pytest.approx(0.5)
    world.clock.go(0.5)
    world.permit("a").succeeded()


def test_the_report_shows_what_an_operator_needs() -> None:
    """Plugin, tool and chat rows, in that order, each with its own state."""
    world = World()
    world.crash("a", "A", times=3)
    world.crash("b", "B", times=1)
    world.clock.go(10)
    assert [(row.tool, row.chat, row.state, row.crashes, row.seconds) for row in world.door.report()] == [
        ("", "", Word.HEALTHY, 0, 0.0),
        ("a", "", Word.HEALTHY, 3, 0.0),
        ("a", "A", Word.QUARANTINED, 0, 20.0),
        ("b", "", Word.HEALTHY, 1, 0.0),
        ("b", "B", Word.HEALTHY, 1, 0.0),
        ("c", "", Word.HEALTHY, 0, 0.0),
    ]
    world.clock.go(60)
    assert [row.chat for row in world.door.report() if row.chat] == ["A"]


def test_memory_is_bounded() -> None:
    """However many chats, parts and long errors: the healthy and the oldest go, the newest quarantine holds."""
    world = World()
    world.crash("a", "first", times=3)
    for n in range(3 * MAX_KEYS):
        world.crash("a", f"chat{n}", "Ann")
    assert isinstance(world.ask("a", "first"), Refusal)
    assert len([row for row in world.door.report() if row.chat]) <= MAX_KEYS
    for n in range(2 * MAX_KEYS):
        world.crash("a", f"bad{n}", "Ann", times=3)
    assert isinstance(world.ask("a", f"bad{2 * MAX_KEYS - 1}"), Refusal)
    assert isinstance(world.ask("a", "first"), Permit)
    assert world.row("a").crashes <= MAX_MARKS
    for n in range(2 * MAX_KEYS):
        world.door.crashed("p", f"task:{n}", "x" * 100_000, "")
    rows = world.door.report()
    assert len([row for row in rows if not row.chat]) <= MAX_KEYS + 4
    assert max(len(row.error) for row in rows) == 200
    assert isinstance(world.ask("a", f"bad{2 * MAX_KEYS - 1}"), Refusal)
    world.door.load_failed("q", "y" * 100_000, "")
    refusal = world.door.look("q", "", "")
    assert refusal is not None
    assert len(refusal.why) == MAX_WHY


def test_the_chat_that_crashed_last_is_kept_longest() -> None:
    """A crash makes its chat the newest again, so its count is not lost to chats that crashed before it."""
    world = World()
    world.crash("a", "old")
    for n in range(MAX_KEYS - 2):
        world.crash("a", f"chat{n}")
    world.crash("a", "old")
    for n in range(3):
        world.crash("a", f"more{n}")
    world.crash("a", "old")
    world.refusal("a", "old")


# -- storage -------------------------------------------------------------------------------------------------

ALL: list[State] = [
    Healthy(990.0, (Mark(1050.0, "A", "Ann"),)),
    Quarantined(3, 990.0, 1100.0, "why"),
    HalfOpen(3, 990.0, None),
    Probation(3, 990.0, 1500.0),
    Disabled(990.0),
]


@pytest.mark.parametrize("state", ALL, ids=lambda state: state.word)
def test_a_restart_that_takes_no_time_changes_nothing(state: State) -> None:
    """Across another origin of the monotonic clock; only the crashes of a healthy key are not kept."""
    frozen = freeze(state, now=1000.0, wall=5000.0)
    back = thaw(frozen, now=1000.0, wall=5000.0, rules=STANDARD)
    assert back == (Healthy(990.0) if isinstance(state, Healthy) else state)
    later = thaw(frozen, now=7.0, wall=5000.0, rules=STANDARD)
    assert remaining(later, 7.0) == remaining(state, 1000.0)
    assert 7.0 - later.last_reload == 10.0


@pytest.mark.parametrize(
    ("wall", "left"), [(5000.0, 100.0), (5040.0, 60.0), (5100.0, 0.0), (1e9, 0.0), (4999.0, 100.0), (-1e9, 100.0)]
)
def test_a_restart_never_lengthens_and_a_jump_back_never_frees(wall: float, left: float) -> None:
    """The time that passed is taken off, between nothing and all of it, whatever the wall clock says."""
    frozen = freeze(Quarantined(3, 990.0, 1100.0, "why"), now=1000.0, wall=5000.0)
    back = thaw(frozen, now=50.0, wall=wall, rules=STANDARD)
    assert isinstance(back, Quarantined)
    assert back.open_until - 50.0 == left
    assert back.k == 3
    assert back.last_reload <= 50.0 - 10.0


def test_what_was_being_loaded_or_tried_killed_the_host() -> None:
    """Found half done at the start, a reload or a probe has failed: one trip more."""
    for state in (Reloading(2, 990.0, 1080.0, 7), HalfOpen(2, 990.0, Probe(7, 1010.0))):
        frozen = freeze(state, now=1000.0, wall=5000.0)
        back = thaw(frozen, now=50.0, wall=1e9, rules=STANDARD, jitter=1.0)
        assert isinstance(back, Quarantined)
        assert (back.k, back.last_reload, back.open_until) == (3, 50.0, 50.0 + 132.0)
        assert back.why.startswith("the bot died while")


def test_a_restart_keeps_all_trouble() -> None:
    """Plugin, tool and chat come back with what is left, their errors too; loading the plugins frees nothing."""
    world = World()
    world.open_for_all("a")
    world.crash("b", "A", times=3)
    world.door.load_failed("q", "SyntaxError: z", "q.py:3")
    world.door.register("off", ["x"])
    world.door.disable("off")
    world.clock.go(10)
    saved = world.door.freeze()
    assert {item.key for item in saved} == {("p", "a"), ("p", "b", "A"), ("q",), ("off",)}

    world.clock = replace(world.clock, mono=3.0, wall=world.clock.wall + 5)
    world.door = world.registry()
    world.door.restore(saved)
    world.door.register("p", ["a", "b", "c"])
    world.door.register("off", ["x"])
    assert world.refusal("a", "Z").seconds == pytest.approx(15)
    assert world.refusal("b", "A").seconds == pytest.approx(15)
    assert world.door.look("off", "x", "A") == Refusal("off", 0.0, "disabled")
    assert world.door.look("q", "", "") == Refusal("q", pytest.approx(15), "failed to load: SyntaxError: z")
    (row,) = (row for row in world.door.report() if row.plugin == "q")
    assert (row.error, row.where) == ("SyntaxError: z", "q.py:3")
    world.permit("b", "B").succeeded()
    world.clock.go(15)
    world.permit("a").succeeded()


def test_frozen_is_plain() -> None:
    """What is stored is words and numbers, so any store can hold it."""
    frozen = freeze(Quarantined(1, 990.0, 1030.0, "why"), now=1000.0, wall=5000.0)
    assert frozen == Frozen(Word("quarantined"), k=1, remaining=30.0, age=10.0, wall=5000.0, why="why")


# -- the table itself ----------------------------------------------------------------------------------------


def test_time_alone_moves_only_what_is_due() -> None:
    """Each deadline by itself, one tick before and at it."""
    cases: list[tuple[State, float, type[State]]] = [
        (Quarantined(1, 0.0, 30.0, ""), 30.0, Reloading),
        (Reloading(1, 0.0, 90.0, 7), 90.0, Quarantined),
        (HalfOpen(1, 0.0, Probe(7, 10.0)), 10.0, Quarantined),
    ]
    for state, due, then in cases:
        assert step(state, Elapsed(9), due - 0.001, STANDARD).state is state
        assert type(step(state, Elapsed(9), due, STANDARD).state) is then
    for state in (Healthy(0.0), HalfOpen(1, 0.0, None), Probation(1, 0.0, 5.0), Disabled(0.0)):
        assert step(state, Elapsed(9), 1e9, STANDARD).state is state


def test_a_due_reload_is_asked_for_once() -> None:
    """The move into Reloading carries the order to reload; staying there does not."""
    first = step(Quarantined(2, 0.0, 30.0, ""), Elapsed(9), 31.0, STANDARD)
    assert first.state == Reloading(k=2, last_reload=31.0, deadline=121.0, token=9)
    assert first.action is Action.RELOAD
    assert step(first.state, Elapsed(10), 32.0, STANDARD).action is None


def test_a_slot_that_is_taken_is_not_taken_over() -> None:
    """The state itself holds one probe, whatever its owner asks of it."""
    taken = HalfOpen(1, 0.0, Probe(7, 10.0))
    assert step(HalfOpen(1, 0.0, None), Admitted(Probe(7, 10.0)), 1.0, STANDARD).state == taken
    assert step(taken, Admitted(Probe(8, 11.0)), 1.0, STANDARD).state is taken


def test_a_threshold_of_one_trips_at_once() -> None:
    """A crash that is nobody's needs no second one beside it."""
    strict = replace(STANDARD, threshold=1)
    assert isinstance(step(Healthy(0.0), Crash("E", 60.0), 1.0, strict).state, Quarantined)
    assert isinstance(step(Healthy(0.0), Crash("E", 60.0, "A", "Ann"), 1.0, strict).state, Healthy)
