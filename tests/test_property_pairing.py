"""Invariant 1 as a property: whatever the model, the tools and the users do, every call has one result, everywhere.

Random scripts of replies, faults, crashes, denials, hangs and cancels run against a whole kernel with a fake clock.
After every pass of the scheduler the record is looked at; the scripted model refuses any unpaired request.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.parts import Parts, message, started

from kernel.conversation import Interrupted, text_of
from kernel.errors import FaultKind, ModelFault, ToolError
from kernel.plugin import Plugin
from kernel.ports import NotSent, Reply, Request, SendUnknown, Sent
from kernel.source import Role
from kernel.stages import Before, Proceed, Refuse
from kernel.testkit import RecordingChannel, ScriptedModel, calling, settle

CALLS = st.sampled_from(
    [
        ("good", {"word": "a"}),
        ("good", {"word": "b"}),
        ("good", {"wurd": 1}),
        ("good", '{"word": "ha'),
        ("effect", {"word": "x"}),
        ("boom", {}),
        ("leave", {}),
        ("cannot", {}),
        ("hang", {}),
        ("stubborn", {}),
        ("secret", {}),
        ("nothing_like_it", {}),
        ("good", {"word": "refuse"}),
        ("good", {"word": "break"}),
        ("good", {"word": "change"}),
        ("output_send__test", {"text": "hi"}),
        ("output_send__test", {"text": "hi", "to": "group:777"}),
        ("output_send__test_help", {}),
    ]
)
REPLIES = st.one_of(
    st.lists(CALLS, min_size=1, max_size=4).map(lambda calls: calling(*calls, text="thinking")),
    st.sampled_from([Reply("the answer"), Reply("")]),
    st.sampled_from(list(FaultKind)).map(lambda kind: ModelFault(kind, "as scripted")),
    st.just("hang"),
)
DELIVERIES = st.sampled_from([Sent("1"), NotSent("no"), SendUnknown("timeout")])


@dataclass(frozen=True)
class Say:
    user: str
    role: Role


@dataclass(frozen=True)
class Command:
    text: str
    user: str


@dataclass(frozen=True)
class Wait:
    seconds: float


USERS = st.sampled_from([("1", Role.OPERATOR), ("2", Role.MEMBER), ("3", Role.ADMIN)])
MOVES = st.one_of(
    USERS.map(lambda user: Say(*user)),
    st.tuples(st.sampled_from(["/stop", "/reset", "/status"]), USERS).map(lambda pair: Command(pair[0], pair[1][0])),
    st.sampled_from([0.0, 0.5, 3.0, 61.0, 400.0]).map(Wait),
)


def tools() -> Plugin:
    plugin = Plugin("random")

    @plugin.tool(risk="read", parallel=True)
    async def good(word: str) -> str:
        """Answer."""
        await asyncio.sleep(0)
        return word

    @plugin.tool(risk="write")
    async def effect(word: str) -> str:
        """Do something."""
        return f"did {word}"

    @plugin.tool(risk="read", parallel=True)
    async def boom() -> str:
        """Crash."""
        raise RuntimeError("boom")

    @plugin.tool(risk="read", parallel=True)
    async def leave() -> str:
        """Exit."""
        raise SystemExit

    @plugin.tool(risk="read", parallel=True)
    async def cannot() -> str:
        """Say no."""
        raise ToolError("no")

    @plugin.tool(risk="read", parallel=True)
    async def hang() -> str:
        """Hang."""
        await asyncio.get_running_loop().create_future()
        return ""

    @plugin.tool(risk="write", parallel=True)
    async def stubborn() -> str:
        """Hang, and take no hint at first."""
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "well then"

    @plugin.tool
    async def secret() -> str:
        """Only for operators."""
        return "secret"

    @plugin.stage("before_toolcall")
    async def check(call: Before) -> Proceed | Refuse | None:
        match call.arguments.get("word"):
            case "refuse":
                return Refuse("refused")
            case "break":
                raise RuntimeError("the hook broke")
            case "change":
                return Proceed({"word": "changed"})
        return None

    return plugin


class CheckedLoop(asyncio.SelectorEventLoop):
    """An event loop that calls `check` after each of its passes."""

    check: Callable[[], None] | None = None

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]
        if self.check is not None:
            self.check()


class Watcher:
    """Looks at the record: results never change, never vanish, and each call has exactly one."""

    def __init__(self, parts: Parts) -> None:
        self._db = parts.ledger.db
        self._settled: dict[str, str] = {}
        self._changes = -1
        self.passes = 0

    def look(self) -> None:
        self.passes += 1
        if self._db.total_changes == self._changes:
            return
        self._changes = self._db.total_changes
        rows = self._db.execute("SELECT id, outcome, result, settled FROM calls").fetchall()
        seen = Counter(ident for ident, *_ in rows)
        assert all(count == 1 for count in seen.values())
        for ident, outcome, result, settled in rows:
            assert outcome, ident
            assert result, ident
            if settled is None:
                assert (outcome, result) == ("interrupted", text_of(Interrupted()))
            assert self._settled.setdefault(ident, result) == result or settled is not None
            if settled is not None:
                before = self._settled.get(ident)
                assert before in (result, text_of(Interrupted())), "a result was changed after it was given"
                self._settled[ident] = result


async def play(script: list[object], moves: list[object], deliveries: list[object]) -> tuple[Parts, Watcher]:
    never = asyncio.Event()
    model = Lenient(*[never if reply == "hang" else reply for reply in script])
    parts = await started(model, tools(), channel=RecordingChannel(*deliveries))
    watcher = Watcher(parts)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CheckedLoop)
    loop.check = watcher.look
    for number, move in enumerate(moves):
        match move:
            case Say(user, role):
                await parts.kernel.submit(message("q", user=user, role=role, key=str(number), chat="10001"))
            case Command(text, user):
                role = Role.OPERATOR if user == "1" else Role.MEMBER
                await parts.kernel.submit(message(text, user=user, role=role, key=str(number), chat="10001"))
            case Wait(seconds):
                await parts.clock.advance(seconds)
        await settle()
    for _ in range(3 * len(moves)):  # every turn comes to its end: nothing hangs for longer than its deadlines
        if not parts.kernel.graph.sessions.runs():
            break
        await parts.clock.advance(301)
    return parts, watcher


class Lenient(ScriptedModel):
    """When the script is used up it answers, instead of failing the test."""

    async def _next(self, request: Request) -> Reply:
        return await super()._next(request) if self._script else Reply("the end")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    script=st.lists(REPLIES, max_size=12),
    moves=st.lists(MOVES, min_size=1, max_size=8),
    deliveries=st.lists(DELIVERIES, max_size=6),
)
def test_no_call_is_ever_without_its_one_result(
    script: list[object], moves: list[object], deliveries: list[object]
) -> None:
    """In memory, on disk and in every request, after every scheduler pass; and every turn ends once."""
    with asyncio.Runner(loop_factory=CheckedLoop) as runner:
        parts, watcher = runner.run(play(script, moves, deliveries))
        db = parts.ledger.db
        assert watcher.passes > 0
        assert db.execute("SELECT count(*) FROM calls WHERE settled IS NULL").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM turns WHERE ending IS NULL").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM inbox WHERE taken IS NULL").fetchone() == (0,)
        said = sum(isinstance(move, Say) for move in moves)
        assert db.execute("SELECT count(*) FROM turns").fetchone() == (said,)
        assert parts.kernel.graph.sessions.runs() == ()
        assert isinstance(parts.model, ScriptedModel)
        stored = dict(db.execute("SELECT id, result FROM calls"))
        for request in parts.model.requests:
            for turn in request.turns:
                for step in turn.steps:
                    for exchange in step.exchanges:
                        assert exchange.settled
                        assert exchange.text == stored[exchange.call.id]
        loop = runner.get_loop()
        assert isinstance(loop, CheckedLoop)
        loop.check = None
        runner.run(parts.kernel.stop())


def test_a_call_that_loses_its_result_is_found() -> None:
    """The watcher itself can fail: a result that is taken back is seen at the next look."""

    async def scene() -> None:
        parts = await started(ScriptedModel(calling(("good", {"word": "a"})), Reply("x")), tools())
        watcher = Watcher(parts)
        await parts.kernel.submit(message("q"))
        await settle()
        watcher.look()
        parts.ledger.db.execute("UPDATE calls SET result = 'other' WHERE name = 'good'")
        with pytest.raises(AssertionError):
            watcher.look()
        await parts.kernel.stop()

    asyncio.run(scene())
