"""Health under random days: the table against a second telling of it, and the registry against its promises."""

import asyncio
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from kernel.breaker import (
    STANDARD,
    Admitted,
    Answered,
    Cancelled,
    Crash,
    Elapsed,
    Healthy,
    Order,
    Probe,
    Quarantined,
    Reload,
    Reloaded,
    Reloading,
    State,
    Trip,
    Word,
    freeze,
    remaining,
    step,
    thaw,
)
from kernel.health import Change, HealthRegistry, Permit, Refusal

QUICK = settings(max_examples=60, stateful_step_count=40, deadline=None, database=None, derandomize=True)


# -- the table -----------------------------------------------------------------------------------------------


@dataclass
class Told:
    """The table told a second time, as one mutable notebook instead of values."""

    word: str = "healthy"
    k: int = 0
    last_reload: float = 0.0
    end: float = 0.0
    """Of the rest, the reload, the probe or the stable time; 0 when nothing runs."""
    token: int = 0
    probe: int = 0
    crashes: list[float] = field(default_factory=list)

    def trip(self, at: float) -> None:
        self.k += 1
        self.word, self.last_reload, self.crashes = "quarantined", at, []
        self.end = at + min(1800, 30 * 2 ** (self.k - 1))
        self.probe = 0

    def pass_time(self, now: float, token: int) -> None:
        if (self.word == "reloading" or (self.word == "half_open" and self.probe)) and now >= self.end:
            self.trip(self.end)
        if self.word == "quarantined" and now >= self.end:
            self.word, self.last_reload, self.end, self.token = "reloading", now, now + 90, token

    def crash(self, now: float, call: int | None) -> None:
        self.crashes = [at for at in self.crashes if now - at < 60]
        if self.word == "healthy":
            self.crashes.append(now)
            if len(self.crashes) == 3:
                self.trip(now)
        elif self.word == "probation" or (self.word == "half_open" and call in (None, self.probe)):
            self.trip(now)

    def fatal(self, now: float) -> None:
        if self.word in ("healthy", "half_open", "probation"):
            self.trip(now)

    def admit(self, call: int, end: float) -> None:
        if self.word == "half_open" and not self.probe:
            self.probe, self.end = call, end

    def answer(self, now: float, call: int, ok: bool) -> None:
        if self.word == "half_open" and self.probe == call:
            self.word, self.probe, self.end = "probation", 0, now + 600
        elif self.word == "probation" and ok and now >= self.end:
            self.word, self.k, self.end = "healthy", 0, 0.0

    def cancel(self, call: int) -> None:
        if self.word == "half_open" and self.probe == call:
            self.probe, self.end = 0, 0.0

    def reloaded(self, now: float, token: int, ok: bool) -> None:
        if self.word == "reloading" and self.token == token:
            if ok:
                self.word, self.last_reload, self.end, self.probe = "half_open", now, 0.0, 0
            else:
                self.trip(now)

    def order(self, now: float, order: Order | Reload) -> None:
        if order is Order.RESET or (order is Order.ENABLE and self.word == "disabled"):
            self.__init__(last_reload=now)  # type: ignore[misc]
        elif order is Order.DISABLE:
            self.__init__("disabled", last_reload=self.last_reload)  # type: ignore[misc]
        elif isinstance(order, Reload) and self.word != "reloading":
            self.__init__("reloading", 0, now, now + 90, order.token)  # type: ignore[misc]


class TableMachine(RuleBasedStateMachine):
    """Random events at random times: values and notebook agree after each."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.number = 10
        self.state: State = Healthy(100.0)
        self.told = Told(last_reload=100.0)

    def send(self, event: object) -> None:
        self.number += 1
        for one in (Elapsed(self.number), event):
            self.state = step(self.state, one, self.now, STANDARD).state  # type: ignore[arg-type]
        self.told.pass_time(self.now, self.number)

    @property
    def call(self) -> int:
        """The probe's number if there is one."""
        return self.told.probe or 1

    @rule(seconds=st.sampled_from([0.5, 7.0, 29.5, 30.0, 59.5, 90.0, 600.0, 5000.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.send(Elapsed(self.number + 1))

    @rule()
    def due(self) -> None:
        """Exactly to the next deadline, where an off-by-one hides."""
        self.now = max(self.now, self.told.end)
        self.send(Elapsed(self.number + 1))

    @rule(whose=st.sampled_from(["probe", "other", "nobody"]))
    def crash(self, whose: str) -> None:
        call = {"probe": self.call, "other": 2, "nobody": None}[whose]
        self.send(Crash("E: x", 60.0, call=call))
        self.told.crash(self.now, call)

    @rule()
    def fatal(self) -> None:
        self.send(Trip("died"))
        self.told.fatal(self.now)

    @rule(deadline=st.sampled_from([1.0, 60.0]))
    def admit(self, deadline: float) -> None:
        self.send(Admitted(Probe(self.number, self.now + deadline)))
        self.told.admit(self.number - 1, self.now + deadline)

    @rule(mine=st.booleans(), ok=st.booleans())
    def answer(self, mine: bool, ok: bool) -> None:
        call = self.call if mine else 2
        self.send(Answered(call, ok))
        self.told.answer(self.now, call, ok)

    @rule(mine=st.booleans())
    def cancel(self, mine: bool) -> None:
        call = self.call if mine else 2
        self.send(Cancelled(call))
        self.told.cancel(call)

    @rule(fresh=st.booleans(), ok=st.booleans())
    def reloaded(self, fresh: bool, ok: bool) -> None:
        token = self.told.token if fresh else 3
        self.send(Reloaded(token, None if ok else "E"))
        self.told.reloaded(self.now, token, ok)

    @rule(order=st.sampled_from(list(Order)))
    def operate(self, order: Order) -> None:
        self.send(order)
        self.told.order(self.now, order)

    @rule()
    def reload(self) -> None:
        order = Reload(self.number + 5000)
        self.send(order)
        self.told.order(self.now, order)

    @rule(wall=st.sampled_from([-1e6, 0.0, 10.0, 1e6]))
    def restart_would_be_fair(self, wall: float) -> None:
        """A restart now would neither lengthen what is left nor, with the wall clock back, shorten it."""
        back = thaw(freeze(self.state, self.now, 0.0), 5.0, wall, STANDARD)
        if isinstance(self.state, Quarantined):
            left, was = remaining(back, 5.0), remaining(self.state, self.now)
            assert left == was if wall <= 0 else left <= was
            assert isinstance(back, Quarantined)
        elif not isinstance(self.state, Reloading) and not (self.told.word == "half_open" and self.told.probe):
            assert back.word == self.state.word

    @invariant()
    def agree(self) -> None:
        told = self.told
        assert (self.state.word, self.state.k, self.state.last_reload) == (told.word, told.k, told.last_reload)
        assert remaining(self.state, self.now) == max(0.0, told.end - self.now)


TestTable = TableMachine.TestCase
TestTable.settings = QUICK


# -- the registry --------------------------------------------------------------------------------------------


@dataclass
class Hands:
    """A clock that is moved by hand."""

    mono: float = 1000.0
    wall: float = 1e9

    def now(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.mono

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"slept {seconds}")

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        raise AssertionError(f"set a timeout of {seconds}")


Held = tuple[HealthRegistry, int, str, Permit]
"""Who gave a permit, for which copy of which plugin."""

PLUGINS = {"p": True, "q": False}
"""Whether it reloads."""
plugins, tools, chats = (
    st.sampled_from(["p", "q"]),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["A", "B", ""]),
)
users = st.sampled_from(["Ann", "Bob"])


class DoorMachine(RuleBasedStateMachine):
    """Two plugins (one reloads, one does not), many callers, time, operators, restarts, a jumping wall clock."""

    permits = Bundle("permits")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Hands()
        self.tokens: list[tuple[str, int]] = []
        self.rests: dict[tuple[str, str, str], tuple[float, float]] = {}
        self.copies = dict.fromkeys(PLUGINS, 0)
        self.door = self.build()

    def build(self) -> HealthRegistry:
        return HealthRegistry(
            self.clock,
            jitter=lambda: 0.25,
            on_change=self.changed,
            reload=lambda plugin, token: self.tokens.append((plugin, token)),
        )

    def changed(self, change: Change) -> None:
        """Keep who rests until when; only time, an operator or a new copy ends that."""
        key = (change.plugin, change.tool, change.chat)
        assert change.before != change.after or isinstance(change.after, Healthy)
        if isinstance(change.after, Quarantined):
            assert change.after.last_reload <= self.clock.mono
            assert 0 < change.after.open_until - change.after.last_reload <= 1800 * 1.1
            assert change.after.k == change.before.k + 1
            self.rests[key] = (change.after.last_reload, change.after.open_until)
        else:
            self.rests.pop(key, None)
        reloaded = isinstance(change.before, Reloading) and change.after.word is Word.HALF_OPEN
        freed = isinstance(change.after, Healthy) and change.after.last_reload == self.clock.mono
        if not change.tool and (reloaded or freed):
            self.copies[change.plugin] += 1
            self.rests = {key: rest for key, rest in self.rests.items() if key[0] != change.plugin}

    def troubled(self, plugin: str) -> set[tuple[str, str]]:
        rows = self.door.report()
        return {(row.tool, row.chat) for row in rows if row.plugin == plugin and row.state is not Word.HEALTHY}

    @initialize()
    def load(self) -> None:
        for plugin, reloads in PLUGINS.items():
            self.door.register(plugin, ["a", "b", "c"], reloads=reloads)

    @rule(target=permits, plugin=plugins, tool=tools, chat=chats, user=users, deadline=st.sampled_from([1.0, 40.0]))
    def call(self, plugin: str, tool: str, chat: str, user: str, deadline: float) -> Held | None:
        before = self.door.report()
        seen = self.door.look(plugin, tool, chat)
        assert self.door.report() == before
        answer = self.door.admit(plugin, tool, chat, user, deadline=deadline)
        if isinstance(answer, Refusal):
            assert answer == seen
            assert answer.seconds >= 0
            return None
        assert seen is None
        for key in ((plugin, "", ""), (plugin, tool, ""), (plugin, tool, chat)):
            assert self.clock.mono >= self.rests.get(key, (0.0, 0.0))[1], f"{key} let a call through"
        return self.door, self.copies[plugin], plugin, answer

    @rule(plugin=plugins, tool=tools)
    def crowd(self, plugin: str, tool: str) -> None:
        """While a plugin or a tool is half open, at most one of many callers gets in."""
        answers = [self.door.admit(plugin, tool, f"chat{n}", f"user{n}", deadline=5.0) for n in range(4)]
        words = {row.tool: row.state for row in self.door.report() if row.plugin == plugin and not row.chat}
        passed = [answer for answer in answers if isinstance(answer, Permit)]
        if Word.HALF_OPEN in (words[""], words[tool]):
            assert len(passed) <= 1
        for permit in passed:
            permit.cancelled()

    @rule(held=consumes(permits), how=st.sampled_from(["ok", "error", "cancelled", "crash", "fatal"]))
    def end(self, held: Held | None, how: str) -> None:
        if held is None or held[0] is not self.door:
            return  # refused, or of a process that is dead
        _, copy, plugin, permit = held
        before, ill = self.door.report(), self.troubled(plugin)
        copy_now = self.copies[plugin]
        match how:
            case "ok":
                permit.succeeded()
            case "error":
                permit.tool_error()
            case "cancelled":
                permit.cancelled()
            case _:
                permit.crashed("E: x", "", fatal=how == "fatal")
        if copy != copy_now:
            assert self.door.report() == before
        if how in ("ok", "error", "cancelled"):
            assert self.troubled(plugin) <= ill, "an end that was no crash made somebody ill"

    @rule(plugin=plugins, fatal=st.booleans())
    def task(self, plugin: str, fatal: bool) -> None:
        self.door.crashed(plugin, "task:feed", "E: x", "", fatal=fatal)

    @rule(seconds=st.sampled_from([0.1, 1.0, 29.0, 33.0, 66.0, 700.0]))
    def wait(self, seconds: float) -> None:
        self.clock.mono += seconds
        self.clock.wall += seconds

    @rule(jump=st.sampled_from([1e6, -1e6]))
    def jump(self, jump: float) -> None:
        self.clock.wall += jump

    @rule()
    def tick(self) -> None:
        """Twice is once."""
        self.door.tick()
        once = (self.door.report(), len(self.tokens))
        self.door.tick()
        assert (self.door.report(), len(self.tokens)) == once

    @rule(ok=st.booleans(), which=st.sampled_from([-1, 0]))
    def answer(self, ok: bool, which: int) -> None:
        if self.tokens:
            plugin, token = self.tokens[which]
            self.door.reloaded(plugin, token, None if ok else "E: y")

    @rule(plugin=plugins, order=st.sampled_from(["reset", "disable", "enable", "begin_reload"]))
    def operate(self, plugin: str, order: str) -> None:
        getattr(self.door, order)(plugin)
        if order == "reset":
            assert self.door.look(plugin, "a", "A") is None

    @rule(plugin=plugins)
    def load_fails(self, plugin: str) -> None:
        self.door.load_failed(plugin, "E: z", "")
        assert self.door.look(plugin, "a", "A") is not None

    @rule(plugin=plugins)
    def load_again(self, plugin: str) -> None:
        """A new copy frees nobody."""
        before = self.troubled(plugin)
        self.door.register(plugin, ["a", "b", "c"], reloads=PLUGINS[plugin])
        self.copies[plugin] += 1
        assert self.troubled(plugin) == before

    @rule(off=st.sampled_from([0.0, 20.0, -1e6]))
    def restart(self, off: float) -> None:
        """What rests goes on resting, never longer."""
        saved, mono = self.door.freeze(), self.clock.mono
        self.tokens.clear()
        self.clock.mono, self.clock.wall = 50.0, self.clock.wall + off
        left = {key: end - mono for key, (_, end) in self.rests.items()}
        self.door = self.build()
        self.door.restore(saved)
        self.load()
        rows = {(row.plugin, row.tool, row.chat): row for row in self.door.report()}
        for key, seconds in left.items():
            assert rows[key].state is Word.QUARANTINED
            expected = max(0.0, seconds - max(0.0, off))
            assert abs(rows[key].seconds - expected) < 1e-3
        self.rests = {key: (50.0, 50.0 + row.seconds) for key, row in rows.items() if row.state is Word.QUARANTINED}

    @invariant()
    def the_report_is_sane(self) -> None:
        for row in self.door.report():
            assert row.last_reload <= self.clock.wall + 1e-3
            assert row.seconds <= 1800 * 1.1
            assert row.k == 0 or row.state not in (Word.HEALTHY, Word.DISABLED)
            assert row.crashes <= 32
            if row.state is Word.QUARANTINED:
                assert row.k > 0
                assert (row.plugin, row.tool, row.chat) in self.rests


TestDoor = DoorMachine.TestCase
TestDoor.settings = QUICK
