"""Conversations as values: calls born answered, outcomes in words, turns that end once."""

import dataclasses
from typing import get_args

import pytest

from kernel.conversation import (
    BadArguments,
    Cancelled,
    Crashed,
    Denied,
    Duplicate,
    Ending,
    Exchange,
    Expired,
    Failed,
    Interrupted,
    NotStarted,
    Ok,
    Outcome,
    Quarantined,
    RateLimited,
    Step,
    TimedOut,
    ToolCall,
    Turn,
    Unconfirmed,
    UnknownTool,
    kind_of,
    text_of,
)
from kernel.errors import Misuse
from kernel.source import Inbound, Role, Scene, SceneKind, Source, conversation_of

ALICE = Source("qq", "1000", Scene(SceneKind.GROUP, "10001"), "20002", Role.MEMBER, "Alice")


def exchange() -> Exchange:
    return Exchange(ToolCall("c1", "pin", '{"a": 1}', {"a": 1}))


def turn(*texts: str) -> Turn:
    inbounds = tuple(Inbound(ALICE, f"k{number}", text, 1.0) for number, text in enumerate(texts))
    return Turn("t1", conversation_of(ALICE), ALICE, inbounds, 1.0)


# What the model reads, written down by hand: a change of words is a change of behaviour and belongs in this table.
WORDS: list[tuple[Outcome, str, str]] = [
    (Ok("42"), "ok", "42"),
    (Ok(""), "ok", "(empty)"),
    (Failed("no such city"), "failed", "failed: no such city"),
    (BadArguments("day: too short"), "bad_arguments", "invalid arguments, not run: day: too short"),
    (UnknownTool("fly"), "unknown_tool", "unknown tool: fly"),
    (Denied("floor", "only the operator"), "denied", "denied (floor): only the operator"),
    (RateLimited("6 messages"), "rate_limited", "not run, limit reached: 6 messages"),
    (
        Duplicate(3),
        "duplicate",
        "not run: this exact call was already made 3 times in this turn; use the results you have",
    ),
    (
        Quarantined("pin", 29.2, "crashed"),
        "quarantined",
        "not run: pin is quarantined for 30 more seconds (crashed); do not retry, go on without it",
    ),
    (
        Quarantined("pin", 0, "crashed"),
        "quarantined",
        "not run: pin is quarantined until an operator enables it (crashed); do not retry, go on without it",
    ),
    (TimedOut(60.0), "timed_out", "timed out after 60 s; whether it had an effect is unknown"),
    (Crashed("KeyError: 'x'", "/srv/plugins/pin.py:3"), "crashed", "the tool crashed: KeyError: 'x'"),
    (Cancelled("/stop"), "cancelled", "cancelled (/stop); it had no effect"),
    (Cancelled("/stop", started=True), "cancelled", "cancelled (/stop); it may have had part of its effect"),
    (
        Interrupted(),
        "interrupted",
        "interrupted: the outcome is unknown; do not assume that it did or did not happen",
    ),
    (
        NotStarted(),
        "not_started",
        "not started: the bot restarted before this call began; it had no effect",
    ),
    (
        Unconfirmed("no answer"),
        "unconfirmed",
        "sent, delivery not confirmed (no answer); do not send it again",
    ),
    (Expired(), "expired", "denied: nobody approved in time"),
]


@pytest.mark.parametrize(("outcome", "kind", "words"), WORDS)
def test_each_outcome_has_its_words(outcome: Outcome, kind: str, words: str) -> None:
    """The result that the model reads and the kind that is stored are exactly these."""
    assert text_of(outcome) == words
    assert kind_of(outcome) == kind


def test_no_outcome_is_missing_and_no_two_sound_alike() -> None:
    """The table above holds the whole union, and from its words each case can be told from every other."""
    assert {type(outcome) for outcome, _, _ in WORDS} == set(get_args(Outcome))
    assert len({text_of(outcome) for outcome, _, _ in WORDS}) == len(WORDS)
    assert len({kind_of(outcome) for outcome, _, _ in WORDS}) == len(get_args(Outcome))


def test_the_place_of_a_crash_is_not_for_the_model() -> None:
    """Paths of this machine stay in the outcome and out of its words."""
    assert "/srv" not in text_of(Crashed("ValueError", "/srv/plugins/pin.py:3"))


# -- exchanges -----------------------------------------------------------------------------------------------


def test_a_call_is_born_interrupted() -> None:
    """Before anything happened it has a result already: the true one if the process dies now."""
    born = exchange()
    assert (born.outcome, born.text, born.settled) == (Interrupted(), text_of(Interrupted()), False)


@pytest.mark.parametrize("outcome", [outcome for outcome, _, _ in WORDS], ids=kind_of)
def test_a_call_settles_once(outcome: Outcome) -> None:
    """One result for a call, whatever it is, `Interrupted` too; a second one is a bug and changes nothing."""
    settled = exchange()
    settled.settle(outcome)
    assert (settled.outcome, settled.text, settled.settled) == (outcome, text_of(outcome), True)
    with pytest.raises(Misuse, match=r"call c1 \(pin\) settled twice"):
        settled.settle(Ok("something else"))
    assert (settled.outcome, settled.text) == (outcome, text_of(outcome))


def test_the_record_s_own_words_stand() -> None:
    """A result read back from the record keeps the words that the model saw then, even empty ones."""
    for words in ("as it was told in an older version", ""):
        read = exchange()
        read.settle(Failed("x"), words)
        assert (read.outcome, read.text) == (Failed("x"), words)


def test_the_outcome_has_no_other_door() -> None:
    """Neither the result nor its words can be assigned from outside."""
    born = exchange()
    for name in ("outcome", "text", "settled"):
        with pytest.raises(AttributeError):
            setattr(born, name, Ok("forged"))
    assert born.outcome == Interrupted()


def test_an_exchange_says_what_it_is() -> None:
    """A failing test or a log line shows the call's name and how it ended."""
    shown = exchange()
    shown.settle(Ok("42"))
    assert repr(shown) == "Exchange('pin', Ok(value='42'))"


# -- turns ---------------------------------------------------------------------------------------------------


def test_a_turn_asks_what_its_messages_say_in_order() -> None:
    """Merged messages become one question, a line each."""
    assert turn("one", "two").question == "one\ntwo"
    assert turn("one").question == "one"


def test_a_turn_grows_step_by_step_and_stays_a_value() -> None:
    """A step makes a new turn; the one before it is as it was."""
    before = turn("q")
    first, second = Step(0, "a", (exchange(),)), Step(1, "b")
    after = before.with_step(first).with_step(second)
    assert (before.steps, after.steps) == ((), (first, second))
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.tainted = True  # type: ignore[misc]


def test_taint_is_only_raised() -> None:
    """Once tainted, a turn stays so through everything that can happen to it."""
    clean = turn("q")
    tainted = clean.taint()
    assert (clean.tainted, tainted.tainted) == (False, True)
    later = tainted.taint().with_step(Step(0, "a")).close(Ending.ANSWERED)
    assert later.tainted


@pytest.mark.parametrize("second", list(Ending))
@pytest.mark.parametrize("first", list(Ending))
def test_a_turn_ends_once(first: Ending, second: Ending) -> None:
    """The first ending stands, also against itself."""
    closed = turn("q").close(first, "because")
    assert (closed.ending, closed.reason) == (first, "because")
    with pytest.raises(Misuse, match="turn t1 ended twice"):
        closed.close(second)
