"""The window: whole turns, the newest first, the current one always, never more than the budget."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.conversation import Exchange, Ok, Step, ToolCall, Turn
from kernel.source import Inbound, Role, Scene, SceneKind, Source, conversation_of
from kernel.window import MAX_TURNS, fit, weigh

ALICE = Source("qq", "1000", Scene(SceneKind.PRIVATE, "20002"), "20002", Role.FRIEND)


def turn(number: int, text: str = "q", weight: int = 0) -> Turn:
    inbound = Inbound(ALICE, f"k{number}", text, float(number))
    return Turn(f"t{number}", conversation_of(ALICE), ALICE, (inbound,), float(number), weight=weight)


def exchange(name: str = "look", raw: str = "{}", result: str | None = None) -> Exchange:
    made = Exchange(ToolCall("c1", name, raw, {}))
    if result is not None:
        made.settle(Ok(result))
    return made


weights = st.lists(st.integers(20, 5000), max_size=60)
budgets = st.integers(-1000, 100_000)


@given(weights, st.text(max_size=200), budgets)
def test_the_window_is_the_newest_whole_turns_that_fit(costs: list[int], question: str, budget: int) -> None:
    """Order kept, the current turn last and unchanged, no gap, nothing that fits left out, never over the budget.

    Only the current turn alone may weigh more than the budget: without the question there is nothing to answer.
    """
    turns = [turn(number, weight=cost) for number, cost in enumerate(costs)]
    current = turn(999, question)
    window = fit(turns, current, budget)
    kept = len(window) - 1
    assert window == (*turns[len(turns) - kept :], current)
    assert window[-1] is current
    assert all(a is b for a, b in zip(window, turns[len(turns) - kept :], strict=False))
    spent = weigh(current) + sum(each.weight for each in window[:-1])
    assert kept == 0 or spent <= budget
    assert kept <= MAX_TURNS
    if kept < min(len(turns), MAX_TURNS):
        assert spent + turns[-kept - 1].weight > budget


@given(weights, budgets, st.integers(0, 5000))
def test_a_larger_budget_never_shows_less(costs: list[int], budget: int, more: int) -> None:
    """What fits into a budget fits into a larger one."""
    turns = [turn(number, weight=cost) for number, cost in enumerate(costs)]
    current = turn(999)
    small, large = fit(turns, current, budget), fit(turns, current, budget + more)
    assert large[len(large) - len(small) :] == small


def test_a_turn_too_heavy_hides_what_is_older() -> None:
    """No gaps: a story with its middle cut out misleads more than one that starts later."""
    turns = [turn(1, weight=20), turn(2, weight=9000), turn(3, weight=20)]
    current = turn(4)
    assert fit(turns, current, 1000) == (turns[2], current)


def test_the_budget_may_be_used_to_the_last_token() -> None:
    """What fits exactly, fits; one token less and it does not."""
    turns, current = [turn(1, weight=100)], turn(2)
    assert fit(turns, current, weigh(current) + 100) == (*turns, current)
    assert fit(turns, current, weigh(current) + 99) == (current,)


def test_short_turns_are_limited_by_number() -> None:
    """However small they are, only the newest forty are shown."""
    turns = [turn(number) for number in range(100)]
    current = turn(999)
    assert fit(turns, current, 10**9) == (*turns[60:], current)


# -- weight --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "tokens"), [("a" * 300, 100), ("企" * 300, 300), ("🐧" * 300, 400), ("", 0)])
def test_text_weighs_a_third_of_its_bytes(text: str, tokens: int) -> None:
    """About four letters or one Chinese character a token, in any script, plus something for each turn."""
    assert weigh(turn(1, text)) == 20 + tokens


def test_everything_that_is_sent_has_weight() -> None:
    """Question, the model's words, names and arguments of calls, their results and the reply all count."""
    long = "x" * 3000
    plain = turn(1)
    light = weigh(plain)
    heavy = [
        turn(1, long),
        plain.with_step(Step(0, long)),
        plain.with_step(Step(0, "", (exchange(name=long),))),
        plain.with_step(Step(0, "", (exchange(raw=long),))),
        plain.with_step(Step(0, "", (exchange(result=long),))),
        replace(plain, reply=exchange("reply", long)),
    ]
    assert [weigh(each) - light >= 999 for each in heavy] == [True] * 6


def test_many_small_calls_are_not_weightless() -> None:
    """A call costs its frame too, not just its words."""
    calls = tuple(exchange("a", "", "b") for _ in range(100))
    assert weigh(turn(1).with_step(Step(0, "", calls))) > 1000


def test_half_a_surrogate_pair_can_be_weighed() -> None:
    """Text that cannot be encoded does not break the count."""
    broken = turn(1, "\ud83d").with_step(Step(0, "\ud83d", (exchange(raw="\ud83d", result="\ud83d"),)))
    assert weigh(broken) > 20
