"""Whatever a plugin's code returns, raises or starts: its call has one sound result, and the next chat is answered."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel
from tests.parts import Parts, message, started, texts

from kernel.conversation import Crashed, Exchange, Failed, Ok, Outcome, Unconfirmed, text_of
from kernel.errors import ToolError
from kernel.media import Media
from kernel.plugin import Plugin
from kernel.ports import Reply
from kernel.source import Role, conversation_of
from kernel.stages import After, Before
from kernel.testkit import FakeClock, ScriptedModel, calling, settle


class Spiteful:
    """Raises wherever somebody looks at it."""

    def __str__(self) -> str:
        raise SystemExit("from __str__")

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        raise SystemExit("from __eq__")

    __hash__ = None  # type: ignore[assignment]


class SpitefulError(Exception):
    def __str__(self) -> str:
        raise SystemExit("from __str__")


class SpitefulToolError(ToolError):
    def __str__(self) -> str:
        raise ValueError("from __str__")


class Model(BaseModel):
    x: int = 1


@dataclass
class Record:
    y: int = 2


class Colour(StrEnum):
    RED = "red"


def cycle() -> list[Any]:
    around: list[Any] = []
    around.append(around)
    return around


def deep() -> list[Any]:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return nested


async def ask(tmp_path: Path, plugin: Plugin, *calls: tuple[str, dict[str, Any]], **settings: object) -> Parts:
    """One turn that makes these calls at once, then one of another chat that only speaks."""
    model = ScriptedModel(calling(*calls), Reply("the end"), Reply("still here"))
    parts = await started(model, plugin, data_dir=tmp_path, **settings)
    await parts.kernel.submit(message("go", role=Role.OPERATOR))
    await rounds(parts.clock)
    await parts.kernel.submit(message("and you?", user="20003"))
    await rounds(parts.clock)
    assert texts(parts.channel)[-1] == "still here"
    return parts


async def rounds(clock: FakeClock) -> None:
    """Let threads answer: they run in real time, the rest in none."""
    for _ in range(20):
        await settle()
        await asyncio.sleep(0.005)


async def result(parts: Parts) -> Exchange:
    chat = conversation_of(message("go").source)
    transcript = await parts.ledger.transcript(chat, 9)
    exchange = transcript.turns[0].exchanges[0]
    assert isinstance(exchange, Exchange)
    return exchange


def outcome_after(tmp_path: Path, tool: Callable[..., Any], **arguments: Any) -> Outcome:
    """What the record holds of a call of this tool."""

    async def play() -> Outcome:
        plugin = Plugin("hostile")
        plugin.tool(risk="read", name="it")(tool)
        parts = await ask(tmp_path, plugin, ("it", arguments))
        settled = await result(parts)
        await parts.kernel.stop()
        return settled.outcome

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "done"),
        ("", ""),
        (Model(), '{"x": 1}'),
        (Record(), '{"y": 2}'),
        ([Model(), {"r": Record()}], '[{"x": 1}, {"r": {"y": 2}}]'),
        (Colour.RED, "red"),
        (Ok({"a": 1}), '{"a": 1}'),  # type: ignore[arg-type]
        (Ok(None), "done"),  # type: ignore[arg-type]
    ],
)
def test_values_are_told_as_text(tmp_path: Path, value: object, said: str) -> None:
    """Also inside an outcome that the tool built itself."""

    async def it() -> object:
        """Return it."""
        return value

    assert outcome_after(tmp_path, it) == Ok(said)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (Spiteful, "cannot be written as JSON"),
        (object, "cannot be written as JSON"),
        (lambda: {Spiteful: 1}, "TypeError"),
        (lambda: {1, 2}, "cannot be written as JSON"),
        (lambda: [b"%d" % number for number in range(9)], "may hold 8 files"),
        (lambda: b"x" * 20_000_001, "may hold 8 files of 20,000,000 bytes"),
        (lambda: Media("no bytes"), "TypeError"),  # type: ignore[arg-type]
        (lambda: float("nan"), "ValueError"),
        (cycle, "ValueError"),
        (deep, "RecursionError"),
        (lambda: "x" * 2_000_001, "longer than 2000000 characters"),
        (lambda: [0] * 1_000_000, "longer than 2000000 characters"),
        (lambda: Failed(Spiteful()), "SystemExit"),  # type: ignore[arg-type]
        (lambda: Unconfirmed(Spiteful()), "SystemExit"),  # type: ignore[arg-type]
    ],
)
def test_what_no_model_can_be_told_is_a_crash(tmp_path: Path, make: Callable[[], object], error: str) -> None:
    """Of the tool, not of the turn."""

    async def it() -> object:
        """Return it."""
        return make()

    outcome = outcome_after(tmp_path, it)
    assert isinstance(outcome, Crashed)
    assert error in outcome.error


def raising(error: BaseException) -> Callable[[], Any]:
    def fails() -> None:
        """Fail."""
        raise error

    return fails


async def cancels_itself() -> None:
    """Cancel the task it runs in."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def gathers_an_exit() -> None:
    """Start a task that wants to end the process."""

    async def leave() -> None:
        raise SystemExit(3)

    await asyncio.gather(leave(), leave())


def exits_in_a_thread() -> None:
    """Want to end the process."""
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("tool", "error"),
    [
        (cancels_itself, "CancelledError"),
        (gathers_an_exit, "SystemExit: 3"),
        (exits_in_a_thread, "SystemExit: 3"),
        (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
        (raising(StopIteration("x")), "StopIteration: x"),
        (raising(GeneratorExit()), "GeneratorExit"),
        (raising(SpitefulError()), "SpitefulError"),
        (raising(RecursionError("deep")), "RecursionError: deep"),
        (raising(MemoryError()), "MemoryError"),
        (raising(BaseExceptionGroup("several", [SystemExit(1), ValueError("v")])), "BaseExceptionGroup"),
    ],
)
def test_whatever_it_raises_is_its_own_crash(tmp_path: Path, tool: Callable[..., Any], error: str) -> None:
    """The bot lives, the turn ends in an answer, and the record names the error."""
    outcome = outcome_after(tmp_path, tool)
    assert isinstance(outcome, Crashed)
    assert outcome.error.startswith(error)


def test_a_tool_error_that_cannot_be_told_is_told_by_its_name(tmp_path: Path) -> None:
    """It is still no crash: the author meant to say that it could not."""
    outcome = outcome_after(tmp_path, raising(SpitefulToolError()))
    assert outcome == Failed("SpitefulToolError")


def test_a_long_reason_is_cut(tmp_path: Path) -> None:
    """A refusal of a million characters would push the talk out of the window."""
    outcome = outcome_after(tmp_path, raising(ToolError("n" * 1_000_000)))
    assert isinstance(outcome, Failed)
    assert outcome.reason == "n" * 2000 + "… (cut)"


def test_a_long_result_is_kept_in_whole_and_shown_in_part(tmp_path: Path) -> None:
    """What stands in the record is what the model saw: the beginning, and where the rest is."""
    whole = "".join(f"line {number}\n" for number in range(5000))

    async def it() -> str:
        """Say much."""
        return whole

    outcome = outcome_after(tmp_path, it)
    assert isinstance(outcome, Ok)
    assert outcome.value.startswith(whole[:8000])
    assert len(outcome.value) < 8200
    assert f"{len(whole)} characters in all" in outcome.value
    [blob] = [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
    assert blob.read_text("utf-8") == whole
    assert blob.relative_to(tmp_path).as_posix() in outcome.value
    assert blob.stat().st_mode & 0o077 == 0


def test_a_result_is_shown_in_part_also_when_it_cannot_be_kept(tmp_path: Path) -> None:
    """A full disk costs the rest of a long result, not the turn."""
    (tmp_path / "blobs").write_text("in the way")

    async def it() -> str:
        """Say much."""
        return "x" * 9000

    outcome = outcome_after(tmp_path, it)
    assert isinstance(outcome, Ok)
    assert "nowhere: the disk refused it" in outcome.value


def exits(value: int) -> int:
    raise SystemExit("from the validator")


def complains(value: int) -> int:
    raise ValueError("never good enough")


def test_a_validator_is_the_plugins_code_too(tmp_path: Path) -> None:
    """A ValueError is a complaint about the arguments, anything else a crash; neither runs the tool."""

    async def bad(x: Annotated[int, AfterValidator(exits)]) -> str:
        """Never runs."""
        raise AssertionError

    async def strict(x: Annotated[int, AfterValidator(complains)]) -> str:
        """Never runs."""
        raise AssertionError

    crashed = outcome_after(tmp_path, bad, x=1)
    assert isinstance(crashed, Crashed)
    assert crashed.error == "SystemExit: from the validator"
    assert "never good enough" in text_of(outcome_after(tmp_path, strict, x=1))


def test_whoever_may_never_call_a_tool_makes_none_of_its_code_run(tmp_path: Path) -> None:
    """Neither its validator nor its hooks: a refused stranger could charge crashes to it."""
    ran: list[str] = []

    def noted(value: int) -> int:
        ran.append("validator")
        return value

    async def play() -> Outcome:
        plugin = Plugin("careful")

        @plugin.tool(risk="exec")
        async def it(x: Annotated[int, AfterValidator(noted)]) -> None:
            """Do what only an operator may."""
            ran.append("tool")

        @plugin.stage("before_toolcall", own=True)
        async def watch(before: Before) -> None:
            ran.append("hook")

        model = ScriptedModel(calling(("it", {"x": 1})), Reply("the end"))
        parts = await started(model, plugin, data_dir=tmp_path)
        await parts.kernel.submit(message("go"))
        await rounds(parts.clock)
        settled = await result(parts)
        await parts.kernel.stop()
        return settled.outcome

    assert text_of(asyncio.run(play())).startswith("denied")
    assert ran == []


@pytest.mark.parametrize(
    "made",
    [
        lambda after: Ok(Spiteful()),  # type: ignore[arg-type]
        lambda after: Failed(None),  # type: ignore[arg-type]
        lambda after: Ok(3),  # type: ignore[arg-type]
        lambda after: Spiteful(),
    ],
)
def test_a_hook_cannot_settle_a_call_with_nonsense(tmp_path: Path, made: Callable[[After], Any]) -> None:
    """Its outcome must be what it is declared to be; else the call keeps the tool's own."""

    async def play() -> Outcome:
        plugin = Plugin("hooked")

        @plugin.tool(risk="read")
        async def it() -> str:
            """Say fine."""
            return "fine"

        plugin.stage("after_toolcall")(made)
        parts = await ask(tmp_path, plugin, ("it", {}))
        settled = await result(parts)
        await parts.kernel.stop()
        return settled.outcome

    assert asyncio.run(play()) == Ok("fine")


def test_one_bad_call_beside_others_costs_only_itself(tmp_path: Path) -> None:
    """In a parallel batch each has its own result, in the order of the calls."""

    async def play() -> list[str]:
        plugin = Plugin("mixed")

        @plugin.tool(risk="read", parallel=True)
        async def good(x: int) -> int:
            """Say it."""
            return x

        @plugin.tool(risk="read", parallel=True)
        async def bad() -> None:
            """Gather an exit."""
            await gathers_an_exit()

        parts = await ask(tmp_path, plugin, ("good", {"x": 1}), ("bad", {}), ("good", {"x": 2}))
        chat = conversation_of(message("go").source)
        transcript = await parts.ledger.transcript(chat, 9)
        await parts.kernel.stop()
        return [text_of(one.outcome) for one in transcript.turns[0].exchanges]

    first, second, third = asyncio.run(play())
    assert (first, third) == ("1", "2")
    assert second == "the tool crashed: SystemExit: 3"


def test_deep_arguments_are_refused_before_anybody_walks_them(tmp_path: Path) -> None:
    """64 levels; deeper ones would cost a stack somewhere behind."""

    async def it(x: list[Any]) -> str:
        """Never runs."""
        raise AssertionError

    said = text_of(outcome_after(tmp_path, it, x=json.loads("[" * 64 + "]" * 64)))
    assert "nested more than 64 levels deep" in said
