"""The seven stages: order, what hooks may say, and that a broken one breaks nothing but itself."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kernel.conversation import Ending, Failed, Ok, ToolCall
from kernel.fence import Fence
from kernel.source import Role, Scene, SceneKind, Source
from kernel.stages import (
    After,
    Answer,
    Before,
    Closed,
    Hook,
    HookFault,
    Input,
    Outgoing,
    Proceed,
    Prompt,
    Refuse,
    Respond,
    Stage,
    Stages,
)
from kernel.testkit.clock import FakeClock, settle

ALICE = Source("qq", "1000", Scene(SceneKind.GROUP, "10001"), "20002", Role.MEMBER, "Alice")
CALL = ToolCall("c1", "pin", "{}", {})
SECONDS = 5.0

INPUT = Input(ALICE, "text")
PROMPT = Prompt(ALICE, "text")
ANSWER = Answer(ALICE, "text", (CALL,))
BEFORE = Before(ALICE, "pin", {"a": 1})
AFTER = After(ALICE, "pin", {"a": 1}, Ok("text"))
OUTGOING = Outgoing(ALICE, "text")
CLOSED = Closed(ALICE, "t1", Ending.ANSWERED, "text")

# By stage: how the kernel passes it, and what comes out when no hook has a say.
PASS: dict[Stage, Callable[[Stages], Awaitable[object]]] = {
    Stage.ON_INPUT: lambda stages: stages.on_input(INPUT),
    Stage.PRE_ACTION: lambda stages: stages.pre_action(PROMPT),
    Stage.POST_ACTION: lambda stages: stages.post_action(ANSWER),
    Stage.BEFORE_TOOLCALL: lambda stages: stages.before_toolcall(BEFORE, "owner"),
    Stage.AFTER_TOOLCALL: lambda stages: stages.after_toolcall(AFTER, "owner"),
    Stage.BEFORE_OUTPUT: lambda stages: stages.before_output(OUTGOING),
    Stage.AFTER_OUTPUT: lambda stages: stages.after_output(CLOSED),
}
SHOWN: dict[Stage, object] = {
    Stage.ON_INPUT: INPUT,
    Stage.PRE_ACTION: PROMPT,
    Stage.POST_ACTION: ANSWER,
    Stage.BEFORE_TOOLCALL: BEFORE,
    Stage.AFTER_TOOLCALL: AFTER,
    Stage.BEFORE_OUTPUT: OUTGOING,
    Stage.AFTER_OUTPUT: CLOSED,
}
UNTOUCHED: dict[Stage, object] = {
    **SHOWN,
    Stage.POST_ACTION: None,
    Stage.AFTER_TOOLCALL: AFTER.outcome,
    Stage.AFTER_OUTPUT: None,
}
CONTAINED: dict[Stage, object] = {
    **UNTOUCHED,
    Stage.BEFORE_TOOLCALL: Refuse("demo: its check of this call failed"),
}

every_stage = pytest.mark.parametrize("stage", list(Stage))


class Table:
    """Stages on a fake clock, with the faults they report and the plugins that rest."""

    def __init__(self, *hooks: Hook, resting: Mapping[str, str] | None = None) -> None:
        self.clock = FakeClock()
        self.faults: list[HookFault] = []
        self.resting = dict(resting or {})
        self.stages = Stages(
            Fence(self.clock),
            SECONDS,
            fault=self.faults.append,
            resting=lambda plugin: self.resting.get(plugin, ""),
        )
        self.undo = [self.stages.add(hook) for hook in hooks]

    def play(self, stage: Stage) -> object:
        async def story() -> object:
            return await PASS[stage](self.stages)

        return asyncio.run(story())


def hook(stage: Stage, function: Callable[[Any], Any], plugin: str = "demo", *, own: bool = False) -> Hook:
    return Hook(plugin, stage, function, own, where=f"{plugin}.py:1")


def says(value: object) -> Callable[[object], object]:
    return lambda _: value


class Seen:
    """A hook that remembers what it was shown and says what it was given to say."""

    def __init__(self, *answers: object) -> None:
        self.shown: list[Any] = []
        self.answers = list(answers)

    def __call__(self, seen: object) -> object:
        self.shown.append(seen)
        return self.answers.pop(0) if self.answers else None


# -- passing -------------------------------------------------------------------------------------------------


def test_there_are_seven_stages_and_the_tables_here_hold_them_all() -> None:
    """A new stage must be driven by every test below."""
    assert len(Stage) == 7
    assert set(PASS) == set(SHOWN) == set(UNTOUCHED) == set(Stage)


@every_stage
def test_without_hooks_nothing_changes(stage: Stage) -> None:
    """What goes in comes out; at the door it is the very same object, which says that nothing was changed."""
    table = Table()
    assert table.play(stage) == UNTOUCHED[stage]
    if stage is Stage.BEFORE_TOOLCALL:
        assert table.play(stage) is BEFORE


@every_stage
def test_each_hook_is_shown_its_stage_and_none_changes_nothing(stage: Stage) -> None:
    """Plain and coroutine hooks, in declared order, each with the stage's own value; None lets it pass."""
    order: list[tuple[str, object]] = []

    def one(seen: object) -> None:
        order.append(("one", seen))

    async def two(seen: object) -> None:
        await asyncio.sleep(0)
        order.append(("two", seen))

    def three(seen: object) -> None:
        order.append(("three", seen))

    table = Table(hook(stage, one), hook(stage, two, "other"), hook(stage, three))
    assert table.play(stage) == UNTOUCHED[stage]
    assert order == [(name, SHOWN[stage]) for name in ("one", "two", "three")]
    assert table.faults == []


@every_stage
def test_hooks_hear_of_their_own_stage_only(stage: Stage) -> None:
    """Registering for one stage is no subscription to another."""
    seen = Seen()
    table = Table(*(hook(other, seen) for other in Stage if other is not stage))
    assert table.play(stage) == UNTOUCHED[stage]
    assert seen.shown == []


@pytest.mark.parametrize(
    ("stage", "answers", "result"),
    [
        (Stage.ON_INPUT, (Proceed("text1"), Proceed("text12")), Input(ALICE, "text12")),
        (Stage.PRE_ACTION, (Proceed("text1"), Proceed("")), Prompt(ALICE, "")),
        (
            Stage.BEFORE_TOOLCALL,
            (Proceed({"a": 2}), Proceed({"b": 3})),
            Before(ALICE, "pin", {"b": 3}),
        ),
        (Stage.AFTER_TOOLCALL, (Failed("1"), Ok("12")), Ok("12")),
        (Stage.BEFORE_OUTPUT, (Proceed("text1"), Proceed("text12")), Outgoing(ALICE, "text12")),
    ],
)
def test_each_hook_sees_what_the_former_made_of_it(
    stage: Stage, answers: tuple[object, object], result: object
) -> None:
    """Changes add up in order; none is lost, and a hook that says nothing stands for the value it saw."""
    first, quiet, last, after = Seen(answers[0]), Seen(), Seen(answers[1]), Seen()
    table = Table(*(hook(stage, each) for each in (first, quiet, last, after)))
    assert table.play(stage) == result
    assert first.shown == [SHOWN[stage]]
    assert quiet.shown == last.shown != first.shown
    final = after.shown[0]
    assert (final.outcome if stage is Stage.AFTER_TOOLCALL else final) == result
    assert table.faults == []


@pytest.mark.parametrize("stage", [Stage.ON_INPUT, Stage.PRE_ACTION, Stage.POST_ACTION])
def test_the_first_answer_ends_the_turn(stage: Stage) -> None:
    """A hook may answer instead of the model; the hooks after it are not asked."""
    later = Seen()
    table = Table(hook(stage, says(None)), hook(stage, says(Respond("no"))), hook(stage, later))
    assert table.play(stage) == Respond("no")
    assert later.shown == []
    assert table.faults == []


def test_the_first_refusal_denies_the_call() -> None:
    """It names the plugin whose word it was; the hooks after it are not asked."""
    stage, later = Stage.BEFORE_TOOLCALL, Seen()
    table = Table(hook(stage, says(None)), hook(stage, says(Refuse("not now")), "lock"), hook(stage, later))
    assert table.play(stage) == Refuse("lock: not now")
    assert later.shown == []
    assert table.faults == []


def test_a_hook_changes_arguments_only_by_saying_so() -> None:
    """Writing into what it was shown changes nothing: arguments that bypass the schema must not get through."""

    def sly(seen: Before) -> None:
        assert isinstance(seen.arguments, dict)
        seen.arguments["a"] = "anything"

    after = Seen()
    table = Table(hook(Stage.BEFORE_TOOLCALL, sly), hook(Stage.BEFORE_TOOLCALL, after))
    assert table.play(Stage.BEFORE_TOOLCALL) is BEFORE
    assert after.shown == [Before(ALICE, "pin", {"a": 1})]
    assert BEFORE.arguments == {"a": 1}


def test_a_hook_that_keeps_its_arguments_cannot_change_them_later() -> None:
    """What it proceeded with is copied: its own later writing does not reach the tool."""
    mine = {"a": 2}

    async def story() -> None:
        table = Table(hook(Stage.BEFORE_TOOLCALL, says(Proceed(mine))))
        result = await table.stages.before_toolcall(BEFORE, "owner")
        mine["a"] = 3
        assert result == Before(ALICE, "pin", {"a": 2})

    asyncio.run(story())


# -- broken hooks --------------------------------------------------------------------------------------------


async def crashes_slowly(seen: object) -> None:
    await asyncio.sleep(0)
    raise KeyError("slow")  # this line


def crashes(seen: object) -> None:
    raise ValueError("quick")  # this line


def exits(seen: object) -> None:
    raise SystemExit(3)  # this line


def leaks(seen: object) -> None:
    raise asyncio.CancelledError  # this line


@every_stage
@pytest.mark.parametrize(
    ("function", "error"),
    [
        (crashes, "ValueError: quick"),
        (crashes_slowly, "KeyError: 'slow'"),
        (exits, "SystemExit: 3"),
        (leaks, "CancelledError"),
    ],
)
def test_a_crash_is_contained_and_charged(stage: Stage, function: Callable[[Any], Any], error: str) -> None:
    """A crashed before_toolcall refuses the call; elsewhere the hook is skipped and the others run.

    The fault names the hook, the error and the line.
    """
    later = Seen()
    broken = hook(stage, function)
    table = Table(broken, hook(stage, later, "other"))
    assert table.play(stage) == CONTAINED[stage]
    assert later.shown == ([] if stage is Stage.BEFORE_TOOLCALL else [SHOWN[stage]])
    (fault,) = table.faults
    assert (fault.hook, fault.error, fault.stuck, fault.skipped) == (broken, error, False, False)
    file, _, line = fault.where.rpartition(":")
    assert Path(file) == Path(__file__)
    assert Path(file).read_text("utf-8").splitlines()[int(line) - 1].endswith("# this line")


def test_a_crash_without_a_line_is_charged_where_the_hook_was_made() -> None:
    """A builtin as hook has no line of its own."""
    table = Table(hook(Stage.ON_INPUT, int))
    assert table.play(Stage.ON_INPUT) == INPUT
    assert [fault.where for fault in table.faults] == ["demo.py:1"]


@every_stage
@pytest.mark.parametrize("stubborn", [False, True], ids=["lets go", "stuck"])
def test_a_hook_that_does_not_answer_is_left_behind(stage: Stage, stubborn: bool) -> None:
    """After its seconds it is treated as crashed, even when it swallows being cancelled; that is told too."""

    async def sleeps(seen: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not stubborn:
                raise
            await asyncio.Event().wait()

    async def story() -> None:
        broken, later = hook(stage, sleeps), Seen()
        table = Table(broken, hook(stage, later))
        passing = asyncio.ensure_future(PASS[stage](table.stages))
        await table.clock.advance(SECONDS - 0.1)
        assert not passing.done()
        await table.clock.advance(0.1 + (1 if stubborn else 0))
        assert await passing == CONTAINED[stage]
        assert table.faults == [HookFault(broken, "no answer within 5 s", "demo.py:1", stuck=stubborn)]
        assert later.shown == ([] if stage is Stage.BEFORE_TOOLCALL else [SHOWN[stage]])

    asyncio.run(story())


# What does not belong where; a name of the wrong type inside the right class is wrong too.
WRONG: list[tuple[Iterable[Stage], object, str]] = [
    (Stage, 42, "int"),
    (Stage, "text", "str"),
    (Stage, False, "bool"),
    (set(Stage) - {Stage.BEFORE_TOOLCALL}, Refuse("no"), "Refuse"),
    (set(Stage) - {Stage.ON_INPUT, Stage.PRE_ACTION, Stage.POST_ACTION}, Respond("hi"), "Respond"),
    (set(Stage) - {Stage.ON_INPUT, Stage.PRE_ACTION, Stage.BEFORE_OUTPUT}, Proceed("text"), "Proceed"),
    (set(Stage) - {Stage.BEFORE_TOOLCALL}, Proceed({"a": 1}), "Proceed"),
    (set(Stage) - {Stage.AFTER_TOOLCALL}, Ok("text"), "Ok"),
    (Stage, Proceed(5), "Proceed"),  # type: ignore[arg-type]
    (Stage, Respond(5), "Respond"),  # type: ignore[arg-type]
    (Stage, Refuse(5), "Refuse"),  # type: ignore[arg-type]
    (Stage, Ok(5), "Ok"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(
    ("stage", "value", "name"),
    [(stage, value, name) for stages, value, name in WRONG for stage in Stage if stage in set(stages)],
)
def test_nonsense_is_a_fault(stage: Stage, value: object, name: str) -> None:
    """A value that the stage does not take counts like a crash: it is told, and it opens no door."""
    later = Seen()
    broken = hook(stage, says(value))
    table = Table(broken, hook(stage, later))
    assert table.play(stage) == CONTAINED[stage]
    assert later.shown == ([] if stage is Stage.BEFORE_TOOLCALL else [SHOWN[stage]])
    assert table.faults == [HookFault(broken, f"returned {name}, which {stage} does not take", "demo.py:1")]


@every_stage
def test_being_cancelled_passes_through(stage: Stage) -> None:
    """`/stop` during a hook stops the hook and the passing; it is no fault of the plugin's."""
    stopped: list[str] = []

    async def waits(seen: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append("hook")

    async def story() -> None:
        later = Seen()
        table = Table(hook(stage, waits), hook(stage, later))
        passing = asyncio.ensure_future(PASS[stage](table.stages))
        await settle()
        passing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await passing
        assert (stopped, later.shown, table.faults) == (["hook"], [], [])

    asyncio.run(story())


# -- resting plugins -----------------------------------------------------------------------------------------

RESTS = {"demo": "demo is quarantined"}


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage is not Stage.BEFORE_TOOLCALL])
def test_hooks_of_a_resting_plugin_are_skipped(stage: Stage) -> None:
    """They are not run, and nothing is charged; those of other plugins run."""
    resting, other = Seen(), Seen()
    table = Table(hook(stage, resting), hook(stage, other, "other"), resting=RESTS)
    assert table.play(stage) == UNTOUCHED[stage]
    assert (resting.shown, other.shown) == ([], [SHOWN[stage]])
    assert table.faults == []


def test_a_resting_lock_of_its_own_tool_refuses() -> None:
    """A quarantined plugin's check of its own tool cannot be run, so the tool is not; the reason is told."""
    stage, resting, later = Stage.BEFORE_TOOLCALL, Seen(), Seen()
    table = Table(hook(stage, resting, "owner", own=True), hook(stage, later), resting={"owner": "it rests"})
    assert table.play(stage) == Refuse("owner: it rests")
    assert (resting.shown, later.shown, table.faults) == ([], [], [])


def test_a_resting_global_hook_is_skipped_with_an_alarm() -> None:
    """One broken plugin must not close every tool: the others' checks still run, and the operator is told."""
    stage, resting, later = Stage.BEFORE_TOOLCALL, Seen(), Seen(Refuse("no"))
    asleep = hook(stage, resting)
    table = Table(asleep, hook(stage, later, "other"), resting=RESTS)
    assert table.play(stage) == Refuse("other: no")
    assert (resting.shown, later.shown) == ([], [BEFORE])
    assert table.faults == [HookFault(asleep, "demo is quarantined", "demo.py:1", skipped=True)]


def test_rest_is_asked_for_at_each_passing() -> None:
    """A hook that comes back from quarantine is run again, without being registered anew."""
    seen = Seen()
    table = Table(hook(Stage.ON_INPUT, seen), resting=RESTS)
    table.play(Stage.ON_INPUT)
    table.resting.clear()
    table.play(Stage.ON_INPUT)
    assert seen.shown == [INPUT]


# -- scope ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rests", [False, True], ids=["awake", "resting"])
@pytest.mark.parametrize("stage", [Stage.BEFORE_TOOLCALL, Stage.AFTER_TOOLCALL])
def test_own_hooks_have_no_say_over_others_tools(stage: Stage, rests: bool) -> None:
    """Neither by running nor, while resting, by refusing."""
    seen = Seen()
    table = Table(hook(stage, seen, own=True), resting=RESTS if rests else {})
    assert table.play(stage) == UNTOUCHED[stage]
    assert (seen.shown, table.faults) == ([], [])


@pytest.mark.parametrize("stage", [Stage.BEFORE_TOOLCALL, Stage.AFTER_TOOLCALL])
def test_own_hooks_see_their_own_tools(stage: Stage) -> None:
    """The owner's hook is run for the owner's tool."""
    seen = Seen()
    table = Table(hook(stage, seen, "owner", own=True))
    table.play(stage)
    assert seen.shown == [SHOWN[stage]]


# -- undo ----------------------------------------------------------------------------------------------------


@every_stage
def test_undo_takes_out_exactly_its_hook(stage: Stage) -> None:
    """An equal hook that was registered separately stays; undoing twice is harmless."""
    seen = Seen()
    table = Table(hook(stage, seen), hook(stage, seen))
    table.play(stage)
    assert len(seen.shown) == 2
    table.undo[0]()
    table.undo[0]()
    table.play(stage)
    assert len(seen.shown) == 3
    table.undo[1]()
    assert table.play(stage) == UNTOUCHED[stage]
    assert len(seen.shown) == 3


@every_stage
def test_a_plugin_that_goes_takes_no_other_s_turn(stage: Stage) -> None:
    """A hook that is taken out while calls pass must not let them slip by the next hook: it may be the lock."""
    table = Table()
    undo: list[Callable[[], None]] = []

    async def goes(seen: object) -> None:
        undo[0]()

    locks = [Seen(), Seen()]
    undo.append(table.stages.add(hook(stage, goes)))
    for lock in locks:
        table.stages.add(hook(stage, lock, "lock"))
    assert table.play(stage) == UNTOUCHED[stage]
    assert [len(lock.shown) for lock in locks] == [1, 1]


def test_hooks_added_meanwhile_wait_for_the_next_passing() -> None:
    """Who is passing sees the hooks that were there when it began."""
    table, late = Table(), Seen()

    async def adds(seen: object) -> None:
        table.stages.add(hook(Stage.BEFORE_TOOLCALL, late))

    undo = table.stages.add(hook(Stage.BEFORE_TOOLCALL, adds))
    table.play(Stage.BEFORE_TOOLCALL)
    assert late.shown == []
    undo()
    table.play(Stage.BEFORE_TOOLCALL)
    assert late.shown == [BEFORE]


@every_stage
def test_a_hook_that_blocks_holds_only_its_own_turn(stage: Stage) -> None:
    """A plain function runs in a thread: other chats go on meanwhile, and its deadline holds."""
    release = threading.Event()

    async def story() -> None:
        broken = hook(stage, lambda seen: release.wait(20))
        table = Table(broken)
        passing = asyncio.ensure_future(PASS[stage](table.stages))
        await table.clock.advance(SECONDS + 1)
        assert await passing == CONTAINED[stage]
        assert [fault.error for fault in table.faults] == ["no answer within 5 s"]

    try:
        asyncio.run(story())
    finally:
        release.set()
