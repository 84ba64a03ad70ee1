"""Who may be called now: the health of every plugin, tool and chat, and the permits to call.

A key is a path: (plugin), (plugin, tool) or (plugin, tool, chat). A call passes if every key on its path lets it;
what becomes of it is told to each that is in trouble. What is reloaded or reset starts with nothing below it.

- A crash counts for its tool and, there, for its chat. A chat that crashes a tool alone is refused alone; crashes
  of different users in different chats open the tool for all.
- Two open tools, a failed load, or what is fatal (a hang, a death) trip the plugin. Only a plugin reloads.
- "hook:before_toolcall", "task:name": such a part of a plugin is a tool in all of this.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from typing import assert_never

from kernel.breaker import (
    STANDARD,
    Action,
    Admitted,
    Answered,
    Cancelled,
    Crash,
    Disabled,
    Elapsed,
    Event,
    Frozen,
    HalfOpen,
    Healthy,
    Order,
    Probation,
    Probe,
    Quarantined,
    Reload,
    Reloaded,
    Reloading,
    Replaced,
    Rules,
    State,
    Trip,
    Word,
    freeze,
    remaining,
    step,
    thaw,
)
from kernel.errors import Misuse
from kernel.ports import Clock

MAX_KEYS = 256
"""Tools remembered of a plugin, chats of a tool."""

MAX_ERROR = 200
"""Characters kept of an error."""

OPEN_TOOLS = 2
"""Open tools that trip their plugin."""

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call does not pass. `seconds` until it may be tried again; 0: until an operator acts."""

    what: str
    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class Change:
    """A move of one key, for the log, the audit and storage; `tool` and `chat` are "" above their level."""

    plugin: str
    tool: str
    chat: str
    before: State
    after: State


@dataclass(frozen=True, slots=True)
class Row:
    """One key as an operator sees it. `crashes` of `limit` count now; `last_reload` is wall time."""

    plugin: str
    tool: str
    chat: str
    state: Word
    crashes: int
    limit: int
    seconds: float
    k: int
    error: str
    where: str
    last_reload: float


@dataclass(frozen=True, slots=True)
class Saved:
    """One key in trouble, for storage."""

    key: Key
    state: Frozen
    error: str
    where: str


@dataclass(slots=True)
class _Node:
    state: State
    below: dict[str, "_Node"] = field(default_factory=dict)
    error: str = ""
    where: str = ""

    def note(self, error: str, where: str) -> None:
        self.error, self.where = error[:MAX_ERROR], where

    def child(self, name: str) -> "_Node":
        """The key below of that name, as the newest. Over the bound the oldest quiet one goes, else the oldest."""
        node = self.below.pop(name, None) or _Node(Healthy(self.state.last_reload))
        if len(self.below) >= MAX_KEYS:
            quiet = (key for key, old in self.below.items() if isinstance(old.state, Healthy) and not old.below)
            del self.below[next(quiet, next(iter(self.below)))]
        self.below[name] = node
        return node


@dataclass(slots=True)
class _Plugin(_Node):
    generation: int = 0
    tools: frozenset[str] = frozenset()
    reloads: bool = True


@dataclass(slots=True, eq=False)
class Permit:
    """The right to make one call. It is settled once; leaving its block unsettled counts as cancelled."""

    _registry: "HealthRegistry"
    _path: Key
    _user: str
    _window: float
    _call: int
    generation: int
    _settled: bool = False

    def __enter__(self) -> "Permit":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._settled:
            self.cancelled()

    def succeeded(self) -> None:
        """The tool did it."""
        self._registry._answered(self._use(), self.generation, Answered(self._call, ok=True))

    def tool_error(self) -> None:
        """The tool said that it could not: no crash."""
        self._registry._answered(self._use(), self.generation, Answered(self._call, ok=False))

    def cancelled(self) -> None:
        """The host called it off, or it never began: this says nothing about the tool."""
        self._registry._answered(self._use(), self.generation, Cancelled(self._call))

    def crashed(self, error: str, where: str, *, fatal: bool = False) -> None:
        """It broke; `fatal` when it took its plugin along (a hang, a death, no stop within the grace)."""
        path = self._use()
        crash = Crash(error, self._window, path[-1], self._user, self._call)
        if self._registry._current(path, self.generation):
            self._registry._crash(path, crash, where, fatal=fatal)

    def _use(self) -> Key:
        if self._settled:
            raise Misuse(f"the permit for {'/'.join(self._path)} was settled twice")
        self._settled = True
        return self._path


class HealthRegistry:
    """Owns all health. It has no timer: a deadline takes effect when somebody calls, or at `tick`.

    `jitter` gives 0..1. `reload` starts a reload and returns; its end is told to `reloaded` with the same token.
    """

    def __init__(
        self,
        clock: Clock,
        rules: Rules = STANDARD,
        *,
        jitter: Callable[[], float],
        on_change: Callable[[Change], None],
        reload: Callable[[str, int], None] | None,
    ) -> None:
        self._clock = clock
        self._rules = rules
        self._jitter = jitter
        self._on_change = on_change
        self._reload = reload
        self._numbers = count(1)
        self._plugins: dict[str, _Plugin] = {}

    # -- what is loaded --------------------------------------------------------------------------------------

    def register(self, plugin: str, tools: Iterable[str], *, reloads: bool = True) -> None:
        """A copy of the plugin is loaded. It is a new generation; trouble stays, since loading proves nothing."""
        entry = self._entry(plugin)
        names = frozenset(tools)
        for gone in entry.tools - names:
            entry.below.pop(gone, None)
        entry.tools, entry.reloads = names, reloads
        entry.generation = next(self._numbers)
        for key, _ in list(_walk({plugin: entry})):
            self._apply(key, Replaced())

    def forget(self, plugin: str) -> None:
        """The plugin is gone for good."""
        self._plugins.pop(plugin, None)

    def load_failed(self, plugin: str, error: str, where: str) -> None:
        """It could not be imported or set up: quarantined at once."""
        entry = self._entry(plugin)
        entry.note(error, where)
        self._catch_up((plugin,))
        if isinstance(entry.state, Reloading):
            self._apply((plugin,), Reloaded(entry.state.token, error))
        else:
            self._apply((plugin,), Trip(f"failed to load: {error}"))

    def reloaded(self, plugin: str, token: int, error: str | None, where: str = "") -> None:
        """A reload ended, well when `error` is None. An answer that comes too late is ignored."""
        entry = self._plugins.get(plugin)
        if entry is None:
            return
        self._catch_up((plugin,))
        if error is not None and isinstance(entry.state, Reloading) and entry.state.token == token:
            entry.note(error, where)
        self._apply((plugin,), Reloaded(token, error))

    # -- calls -----------------------------------------------------------------------------------------------

    def look(self, plugin: str, tool: str, chat: str) -> Refusal | None:
        """What `admit` would refuse with. Changes nothing."""
        now = self._clock.monotonic()
        said = [
            _refusal(key, step(node.state, self._elapsed(key, 0), now, self._rules, self._jitter()).state, now)
            for key, node in self._troubles((plugin, tool, chat))
        ]
        return max(filter(None, said), key=lambda refusal: refusal.seconds or inf, default=None)

    def admit(self, plugin: str, tool: str, chat: str, user: str, *, deadline: float) -> Permit | Refusal:
        """Ask at the door. `chat` is the scene, never one user's thread in it; "" counts a crash for everybody.

        `deadline`: the tool's own, in seconds; a call that was let through to try is lost after it.
        """
        entry, path, call = self._known(plugin), (plugin, tool, chat), next(self._numbers)
        if self._catch_up(path):
            refusal = self.look(plugin, tool, chat)
            if refusal is not None:
                return refusal
            self._tell(path, Admitted(Probe(call, self._clock.monotonic() + deadline)))
        return Permit(self, path, user, self._rules.window_for(deadline), call, entry.generation)

    def crashed(self, plugin: str, part: str, error: str, where: str, *, fatal: bool = False) -> None:
        """A part of the plugin crashed outside of any permit: a task, a hook. Ignored once it is forgotten."""
        if plugin in self._plugins:
            self._crash((plugin, part, ""), Crash(error, self._rules.window), where, fatal=fatal)

    def _current(self, path: Key, generation: int) -> bool:
        """Whether a permit is of the copy that is loaded now: an older one says nothing about this one."""
        entry = self._plugins.get(path[0])
        return entry is not None and entry.generation == generation

    def _answered(self, path: Key, generation: int, event: Answered | Cancelled) -> None:
        if self._current(path, generation) and self._catch_up(path):
            self._tell(path, event)

    def _crash(self, path: Key, crash: Crash, where: str, *, fatal: bool) -> None:
        """Charge the tool and, there, the chat; the plugin if it was fatal, or if it is not healthy anyway."""
        plugin, tool, chat = path
        entry = self._known(plugin)
        self._catch_up(path)
        entry.note(crash.error, where)
        if fatal:
            self._apply((plugin,), Trip(f"{tool}: {crash.error.partition(':')[0]}"))
            self._tell(path, crash)
            return
        if not isinstance(entry.state, Healthy):
            self._apply((plugin,), crash)
        node = entry.child(tool)
        node.note(crash.error, where)
        self._apply((plugin, tool), crash)
        if chat:
            node.child(chat).note(crash.error, where)
            self._apply(path, replace(crash, chat="", user=""))  # there it does not matter whose it was

    def _tell(self, path: Key, event: Event) -> None:
        """Tell every key in trouble on the path."""
        for key, _ in self._troubles(path):
            self._apply(key, event)

    # -- operators -------------------------------------------------------------------------------------------

    def reset(self, plugin: str) -> None:
        """Take it for healthy, whatever it is."""
        self._order(plugin, Order.RESET)

    def disable(self, plugin: str) -> None:
        """Off, until `enable`; also over restarts."""
        self._order(plugin, Order.DISABLE)

    def enable(self, plugin: str) -> None:
        """On again, if it was disabled."""
        self._order(plugin, Order.ENABLE)

    def begin_reload(self, plugin: str) -> None:
        """Load a new copy now; also of a plugin that declines automatic reloads."""
        if self._reload is None:
            raise Misuse("nobody here can reload a plugin")
        self._order(plugin, Reload(next(self._numbers)))

    def _order(self, plugin: str, order: Order | Reload) -> None:
        self._known(plugin)
        self._apply((plugin,), order)

    # -- time, display, storage ------------------------------------------------------------------------------

    def tick(self) -> None:
        """Let all deadlines that have passed take effect. Without it a plugin that nobody calls is not reloaded."""
        for key, node in list(_walk(self._plugins)):
            if not isinstance(node.state, Healthy):
                self._catch_up(key)

    def report(self) -> tuple[Row, ...]:
        """Every plugin, its tools, and the chats that are in trouble with one. Changes nothing."""
        now, wall = self._clock.monotonic(), self._clock.now()
        rows = []
        for plugin, entry in self._plugins.items():
            rows.append(self._row((plugin,), entry, now, wall))
            silent = {
                tool: _Node(Healthy(entry.state.last_reload)) for tool in sorted(entry.tools - entry.below.keys())
            }
            rows += [self._row(key, node, now, wall) for key, node in _walk(entry.below | silent, (plugin,))]
        return tuple(row for row in rows if not row.chat or row.crashes or row.state is not Word.HEALTHY)

    def freeze(self) -> tuple[Saved, ...]:
        """All keys in trouble, for storage."""
        now, wall = self._clock.monotonic(), self._clock.now()
        return tuple(
            Saved(key, freeze(node.state, now, wall), node.error, node.where)
            for key, node in _walk(self._plugins)
            if not isinstance(node.state, Healthy)
        )

    def restore(self, saved: Iterable[Saved]) -> None:
        """Put stored trouble back, before anything is registered."""
        now, wall = self._clock.monotonic(), self._clock.now()
        for item in saved:
            plugin, *rest = item.key
            node: _Node = self._entry(plugin)
            for name in rest:
                node = node.child(name)
            node.state = thaw(item.state, now, wall, self._rules, self._jitter())
            node.note(item.error, item.where)

    def _row(self, key: Key, node: _Node, now: float, wall: float) -> Row:
        state = node.state
        live = [mark for mark in state.crashes if now < mark.until] if isinstance(state, Healthy) else []
        return Row(
            *_names(key),
            state=state.word,
            crashes=len(live),
            limit=self._rules.threshold,
            seconds=remaining(state, now),
            k=state.k,
            error=node.error,
            where=node.where,
            last_reload=wall - (now - state.last_reload),
        )

    # -- the tree --------------------------------------------------------------------------------------------

    def _entry(self, plugin: str) -> _Plugin:
        born = _Plugin(Healthy(self._clock.monotonic()))
        return self._plugins.setdefault(plugin, born)

    def _known(self, plugin: str) -> _Plugin:
        entry = self._plugins.get(plugin)
        if entry is None:
            raise Misuse(f"no plugin called {plugin!r} is registered")
        return entry

    def _find(self, key: Key) -> _Node | None:
        node: _Node | None = self._plugins.get(key[0])
        for name in key[1:]:
            node = node and node.below.get(name)
        return node

    def _troubles(self, path: Key) -> list[tuple[Key, _Node]]:
        """The keys on the path that are not healthy, from the plugin down."""
        found: list[tuple[Key, _Node]] = []
        nodes: Mapping[str, _Node] = self._plugins
        for depth, name in enumerate(path, 1):
            node = nodes.get(name)
            if node is None:
                break
            if not isinstance(node.state, Healthy):
                found.append((path[:depth], node))
            nodes = node.below
        return found

    def _elapsed(self, key: Key, token: int) -> Elapsed:
        reloads = len(key) == 1 and self._reload is not None and self._plugins[key[0]].reloads
        return Elapsed(token if reloads else None)

    def _catch_up(self, path: Key) -> bool:
        """Let the deadlines on this path take effect that have passed; True when there was trouble on it."""
        troubles = self._troubles(path)
        for key, _ in troubles:
            self._apply(key, self._elapsed(key, next(self._numbers)))
        return bool(troubles)

    def _apply(self, key: Key, event: Event) -> None:
        """Make one move: the only place where a living key changes its state."""
        node = self._find(key)
        if node is None:  # a move above it, or a callback, has dropped it meanwhile
            return
        before = node.state
        move = step(before, event, self._clock.monotonic(), self._rules, self._jitter())
        node.state = after = move.state
        if move.action is None and (after == before or (isinstance(before, Healthy) and isinstance(after, Healthy))):
            return
        if move.action is Action.RENEW:
            self._known(key[0]).generation = next(self._numbers)
            node.below.clear()
        self._on_change(Change(*_names(key), before, after))
        if move.action is Action.RELOAD and isinstance(after, Reloading) and self._reload is not None:
            self._reload(key[0], after.token)
        if len(key) == 2 and isinstance(after, Quarantined):
            self._count_open(key[0])

    def _count_open(self, plugin: str) -> None:
        now, tools = self._clock.monotonic(), self._known(plugin).below
        open_tools = sorted(
            tool for tool, node in tools.items() if isinstance(node.state, Quarantined) and now < node.state.open_until
        )
        if len(open_tools) >= OPEN_TOOLS:
            self._apply((plugin,), Trip(f"{len(open_tools)} of its tools are open: {', '.join(open_tools)}"))


def _names(key: Key) -> tuple[str, str, str]:
    plugin, tool, chat = (*key, "", "")[:3]
    return plugin, tool, chat


def _walk(nodes: Mapping[str, _Node], above: Key = ()) -> Iterator[tuple[Key, _Node]]:
    for name, node in nodes.items():
        key = (*above, name)
        yield key, node
        yield from _walk(node.below, key)


def _refusal(key: Key, state: State, now: float) -> Refusal | None:
    """What the key's state says against a call, if anything; of a chat's key the tool is named."""
    what = key[min(1, len(key) - 1)]
    match state:
        case Healthy() | Probation() | HalfOpen(probe=None):
            return None
        case Quarantined(why=why):
            return Refusal(what, remaining(state, now), why)
        case Reloading():
            return Refusal(what, remaining(state, now), "reloading")
        case HalfOpen():
            return Refusal(what, remaining(state, now), "probing")
        case Disabled():
            return Refusal(what, 0.0, "disabled")
        case _:
            assert_never(state)
