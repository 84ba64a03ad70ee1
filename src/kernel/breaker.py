"""The circuit breaker as values: the six states of a key, what can happen to it, and the tables of its moves.

Pure: time, chance and fresh numbers come in as arguments. All times are monotonic readings, and one that
decides is a stored deadline. What stands in no table changes nothing.

Healthy ─crashes→ Quarantined ─cool-down over→ Reloading ─ok→ HalfOpen ─probe answers→ Probation ─stable→ Healthy
                      ↑                            │failed       │probe crashes or is lost  │crash
                      └────────────────────────────┴─────────────┴──────────────────────────┘
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, assert_never

MAX_MARKS = 32
"""Crashes remembered of one key: one user in very many chats must not fill the memory."""

MAX_WHY = 200
"""Characters of a quarantine's reason."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Seconds, except for `threshold` (the crashes that trip a key) and `jitter_share` (of the cool-down)."""

    threshold: int = 3
    window: float = 60.0
    cool: float = 30.0
    cool_max: float = 1800.0
    jitter_share: float = 0.1
    reload_deadline: float = 90.0
    stable: float = 600.0

    def window_for(self, deadline: float) -> float:
        """How long a crash counts: long enough that a tool which always runs into its deadline trips."""
        return max(self.window, 4 * deadline)

    def cool_down(self, k: int, jitter: float) -> float:
        """The rest after the k-th trip in a row; `jitter` is 0..1."""
        doublings = min(k - 1, 32)  # a float overflows some thousand trips later
        return min(self.cool_max, self.cool * 2.0**doublings) * (1 + self.jitter_share * jitter)


STANDARD = Rules()


# -- states: `last_reload` is the moment of the last load or trip, `k` counts the trips in a row -------------


class Word(StrEnum):
    """A state's name in pictures and in storage."""

    HEALTHY = "healthy"
    QUARANTINED = "quarantined"
    RELOADING = "reloading"
    HALF_OPEN = "half_open"
    PROBATION = "probation"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class Mark:
    """A crash that counts until a moment. `chat` is "" when it was nobody's call: a task, a hook of all chats."""

    until: float
    chat: str
    user: str


@dataclass(frozen=True, slots=True)
class Probe:
    """The one call that is let through to try; lost at its deadline."""

    call: int
    deadline: float


@dataclass(frozen=True, slots=True)
class Healthy:
    """Calls pass."""

    word: ClassVar[Word] = Word.HEALTHY
    k: ClassVar[int] = 0
    last_reload: float
    crashes: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Quarantined:
    """No call passes before `open_until`."""

    word: ClassVar[Word] = Word.QUARANTINED
    k: int
    last_reload: float
    open_until: float
    why: str


@dataclass(frozen=True, slots=True)
class Reloading:
    """A new copy is being loaded; only the answer with this token counts."""

    word: ClassVar[Word] = Word.RELOADING
    k: int
    last_reload: float
    deadline: float
    token: int


@dataclass(frozen=True, slots=True)
class HalfOpen:
    """One call passes, and its end decides."""

    word: ClassVar[Word] = Word.HALF_OPEN
    k: int
    last_reload: float
    probe: Probe | None


@dataclass(frozen=True, slots=True)
class Probation:
    """Calls pass, one crash is enough; the first success after `until` heals."""

    word: ClassVar[Word] = Word.PROBATION
    k: int
    last_reload: float
    until: float


@dataclass(frozen=True, slots=True)
class Disabled:
    """Switched off by an operator, until an operator switches it on."""

    word: ClassVar[Word] = Word.DISABLED
    k: ClassVar[int] = 0
    last_reload: float


State = Healthy | Quarantined | Reloading | HalfOpen | Probation | Disabled


def remaining(state: State, now: float) -> float:
    """Seconds to the deadline that the state holds; 0 when it holds none or has passed it."""
    match state:
        case (
            Quarantined(open_until=end)
            | Reloading(deadline=end)
            | HalfOpen(probe=Probe(deadline=end))
            | Probation(until=end)
        ):
            return max(0.0, end - now)
        case Healthy() | HalfOpen() | Disabled():
            return 0.0
        case _:
            assert_never(state)


# -- events --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Elapsed:
    """Time has passed. `token` is for the reload that may be due; None for a key that does not reload."""

    token: int | None


@dataclass(frozen=True, slots=True)
class Admitted:
    """A call goes in; where one is wanted, as the probe."""

    probe: Probe


@dataclass(frozen=True, slots=True)
class Answered:
    """A call ended without a crash; `ok` is False for a ToolError."""

    call: int
    ok: bool


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The host called a call off, which says nothing about the tool."""

    call: int


@dataclass(frozen=True, slots=True)
class Crash:
    """Something crashed; `call` is None for what was no call: a task, a hook."""

    error: str
    window: float
    chat: str = ""
    user: str = ""
    call: int | None = None


@dataclass(frozen=True, slots=True)
class Trip:
    """So bad that nothing is counted: a hang, a death, a failed load, two tools open."""

    why: str


@dataclass(frozen=True, slots=True)
class Reloaded:
    """A reload ended, well when `error` is None."""

    token: int
    error: str | None


@dataclass(frozen=True, slots=True)
class Replaced:
    """A new copy took over without a word from this machine."""


@dataclass(frozen=True, slots=True)
class Reload:
    """The operator wants a new copy."""

    token: int


class Order(StrEnum):
    """The operator takes it for healthy, switches it off, switches it on again."""

    RESET = "reset"
    DISABLE = "disable"
    ENABLE = "enable"


Event = Elapsed | Admitted | Answered | Cancelled | Crash | Trip | Reloaded | Replaced | Reload | Order


# -- moves ---------------------------------------------------------------------------------------------------


class Action(StrEnum):
    """What the owner of the state has to do about a move."""

    RELOAD = "reload"
    RENEW = "renew"
    """A new generation: what older calls report no longer counts."""


@dataclass(frozen=True, slots=True)
class Move:
    """The next state, and what is to be done."""

    state: State
    action: Action | None = None


def step(state: State, event: Event, now: float, rules: Rules, jitter: float = 0.0) -> Move:
    """What the event makes of the state."""
    match event:
        case Elapsed(token):
            return _elapse(state, token, now, rules, jitter)
        case Crash() | Trip():
            return Move(_fail(state, event, now, rules, jitter))
        case Reloaded(token, error):
            return _reloaded(state, token, error, now, rules, jitter)
        case Admitted() | Answered() | Cancelled() | Replaced():
            return Move(_use(state, event, now, rules))
        case Reload() | Order():
            return _obey(state, event, now, rules)
        case _:
            assert_never(event)


def _trip(state: State, now: float, rules: Rules, jitter: float, why: str) -> Quarantined:
    """The only way into quarantine."""
    k = state.k + 1
    return Quarantined(k=k, last_reload=now, open_until=now + rules.cool_down(k, jitter), why=why[:MAX_WHY])


def _elapse(state: State, token: int | None, now: float, rules: Rules, jitter: float) -> Move:
    """A deadline takes effect at the moment that it names, however late somebody looks."""
    match state:
        case Quarantined(k, last, end, _) if now >= end:
            if token is None:
                return Move(HalfOpen(k, last, None))
            return Move(Reloading(k, now, now + rules.reload_deadline, token), Action.RELOAD)
        case Reloading(deadline=end) if now >= end:
            why = f"reload not done in {rules.reload_deadline:g} s"
            return _elapse(_trip(state, end, rules, jitter, why), token, now, rules, jitter)
        case HalfOpen(probe=Probe(deadline=end)) if now >= end:
            why = "the call that tried it never came back"
            return _elapse(_trip(state, end, rules, jitter, why), token, now, rules, jitter)
        case _:
            return Move(state)


def _fail(state: State, event: Crash | Trip, now: float, rules: Rules, jitter: float) -> State:
    match state, event:
        case Healthy(last, crashes), Crash(error, window, chat, user):
            live = [mark for mark in crashes if now < mark.until]
            marks = (*live, Mark(now + window, chat, user))[-MAX_MARKS:]
            if len(marks) < rules.threshold or not _concerns_all(marks):
                return Healthy(last, marks)
            return _trip(state, now, rules, jitter, f"{len(marks)} crashes in {window:g} s, last: {_kind(error)}")
        case HalfOpen(probe=held), Crash(error, call=call) if call is None or _is(held, call):
            return _trip(state, now, rules, jitter, f"crashed again when tried: {_kind(error)}")
        case Probation(), Crash(error):
            return _trip(state, now, rules, jitter, f"crashed again soon after: {_kind(error)}")
        case ((Healthy() | HalfOpen() | Probation()), Trip(why)):
            return _trip(state, now, rules, jitter, why)
        case _:
            return state


def _concerns_all(marks: tuple[Mark, ...]) -> bool:
    """Neither a single chat nor a single user explains them: two of them are of other users in other chats."""
    chats, users = {mark.chat for mark in marks}, {mark.user for mark in marks}
    return "" in chats or (len(chats) > 1 and len(users) > 1)


def _kind(error: str) -> str:
    """The type alone: a refusal is read in every chat, and a message may quote what was said in another one."""
    return error.partition(":")[0]


def _is(held: Probe | None, call: int) -> bool:
    return held is not None and held.call == call


def _reloaded(state: State, token: int, error: str | None, now: float, rules: Rules, jitter: float) -> Move:
    if not isinstance(state, Reloading) or state.token != token:
        return Move(state)
    if error is not None:
        return Move(_trip(state, now, rules, jitter, f"failed to load: {error}"))
    return Move(HalfOpen(state.k, now, None), Action.RENEW)


def _use(state: State, event: Admitted | Answered | Cancelled | Replaced, now: float, rules: Rules) -> State:
    match state, event:
        case HalfOpen(k, last, None), Admitted(probe):
            return HalfOpen(k, last, probe)
        case HalfOpen(k, last, held), Answered(call) if _is(held, call):
            return Probation(k, last, now + rules.stable)
        case HalfOpen(k, last, held), Cancelled(call) if _is(held, call):
            return HalfOpen(k, last, None)
        case HalfOpen(k, last, _), Replaced():
            return HalfOpen(k, last, None)
        case Probation(until=end), Answered(ok=True) if now >= end:
            return Healthy(state.last_reload)
        case Healthy(), Replaced():
            return Healthy(now)
        case _:
            return state


def _obey(state: State, order: Reload | Order, now: float, rules: Rules) -> Move:
    match state, order:
        case _, Order.RESET:
            return Move(Healthy(now), Action.RENEW)
        case Disabled(), Order.ENABLE:
            return Move(Healthy(now), Action.RENEW)
        case _, Order.DISABLE:
            return Move(Disabled(state.last_reload))
        case Reloading(deadline=end), Reload() if now < end:
            return Move(state)  # one at a time
        case _, Reload(token):
            return Move(Reloading(0, now, now + rules.reload_deadline, token), Action.RELOAD)
        case _:
            return Move(state)


# -- storage -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frozen:
    """A state for storage: spans, and the wall clock's reading, since a monotonic one dies with its process."""

    word: Word
    k: int
    remaining: float
    age: float
    wall: float
    why: str = ""


def freeze(state: State, now: float, wall: float) -> Frozen:
    """The state as it can be stored."""
    why = state.why if isinstance(state, Quarantined) else ""
    return Frozen(state.word, state.k, remaining(state, now), now - state.last_reload, wall, why)


def thaw(frozen: Frozen, now: float, wall: float, rules: Rules, jitter: float = 0.0) -> State:
    """The state in a new process.

    The time that is left never grows, and a wall clock that went back takes nothing off. A reload or a probe that
    was under way is taken for what killed the old process.
    """
    gone = max(0.0, wall - frozen.wall)
    left = now + max(0.0, frozen.remaining - gone)
    k, last = frozen.k, now - frozen.age - gone
    match frozen.word:
        case Word.HEALTHY:
            return Healthy(last)
        case Word.QUARANTINED:
            return Quarantined(k, last, left, frozen.why)
        case Word.RELOADING:
            return _trip(Reloading(k, last, now, 0), now, rules, jitter, "the bot died while it was being loaded")
        case Word.HALF_OPEN if frozen.remaining > 0:
            return _trip(HalfOpen(k, last, None), now, rules, jitter, "the bot died while it was being tried")
        case Word.HALF_OPEN:
            return HalfOpen(k, last, None)
        case Word.PROBATION:
            return Probation(k, last, left)
        case Word.DISABLED:
            return Disabled(last)
        case _:
            assert_never(frozen.word)
