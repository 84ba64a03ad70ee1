"""What a turn may use up: steps, sends and repetitions, each with its own refusal."""

from collections.abc import Mapping
from typing import Any

import pytest

from kernel.conversation import Duplicate, Outcome, RateLimited
from kernel.limits import Limits, Tally
from kernel.tools import Risk, Tool, tool_from


def anything(a: Any = None, b: Any = None) -> None:
    """Do something."""


def tool(name: str = "look", risk: Risk = Risk.READ) -> Tool:
    return tool_from(anything, plugin="demo", name=name, risk=risk)


SAY = tool("say", Risk.SEND)


def outcomes(tally: Tally, which: Tool, *arguments: Mapping[str, Any]) -> list[Outcome | None]:
    return [tally.admit(which, each) for each in arguments]


def test_steps_are_counted_to_the_limit() -> None:
    """Exactly as many steps as allowed; the one after them closes the turn, and so do all that follow."""
    tally = Tally(Limits(steps=2))
    assert [tally.step(), tally.step(), tally.closing] == [True, True, False]
    assert [tally.step(), tally.closing, tally.step()] == [False, True, False]
    assert tally.left["steps"] == 0


def test_a_closing_turn_refuses_every_call() -> None:
    """In the last words nothing runs any more, whatever it is and however little was used; nothing is counted."""
    tally = Tally(Limits(steps=1))
    tally.step()
    assert tally.admit(tool(), {}) is None
    tally.step()
    refused = RateLimited("1 steps in this turn are used up; answer now, without tools")
    assert [tally.admit(tool("other"), {}), tally.admit(SAY, {})] == [refused, refused]
    assert tally.left["sends"] == 6


def test_the_same_call_runs_three_times() -> None:
    """A model that repeats itself is told how often it has; other arguments and other tools are no repetition."""
    tally = Tally(Limits(same_call=3))
    assert outcomes(tally, tool(), *[{"a": 1}] * 5) == [None, None, None, Duplicate(3), Duplicate(3)]
    assert tally.admit(tool(), {"a": 2}) is None
    assert tally.admit(tool("other"), {"a": 1}) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": {"x": 1, "y": [1]}}, {"a": {"y": [1], "x": 1}}),
    ],
)
def test_the_order_of_keys_makes_no_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """The same arguments in another order are the same call, at any depth."""
    assert outcomes(Tally(Limits(same_call=1)), tool(), one, other) == [None, Duplicate(1)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": "1"}, {"a": 1}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": 1}, {"b": 1}),
        ({"a": None}, {}),
        ({"a": "x"}, {"a": "X"}),
        ({"a": " x"}, {"a": "x"}),
    ],
)
def test_different_arguments_are_different_calls(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Type, order in a list, name, case and blanks all count."""
    assert outcomes(Tally(Limits(same_call=1)), tool(), one, other) == [None, None]


def test_sends_are_limited_and_nothing_else_is() -> None:
    """Only tools of the risk `send` use up messages, and only those that were let through."""
    tally = Tally(Limits(sends=2))
    harmless = [tool(risk.value, risk) for risk in Risk if risk is not Risk.SEND]
    assert [tally.admit(each, {}) for each in harmless] == [None] * 4
    assert tally.left["sends"] == 2
    refused = RateLimited("2 messages in this turn are sent; send no more")
    assert outcomes(tally, SAY, *({"a": n} for n in range(4))) == [None, None, refused, refused]
    assert tally.left["sends"] == 0


def test_a_refused_repetition_uses_up_no_message() -> None:
    """Saying the same thing again is refused as that, and costs nothing."""
    tally = Tally(Limits(sends=6, same_call=1))
    assert outcomes(tally, SAY, {"a": 1}, {"a": 1}, {"a": 1}) == [None, Duplicate(1), Duplicate(1)]
    assert tally.left["sends"] == 5


def test_a_refused_send_is_no_repetition() -> None:
    """Calls over the limit of sends stay refused as such: they were never made."""
    tally = Tally(Limits(sends=0, same_call=1))
    assert [type(outcome) for outcome in outcomes(tally, SAY, {}, {}, {})] == [RateLimited] * 3


def test_what_is_left_can_be_asked() -> None:
    """The numbers start at the limits and go down with what was used."""
    tally = Tally(Limits(steps=12, sends=6))
    assert tally.left == {"steps": 12, "sends": 6}
    tally.step()
    tally.admit(SAY, {})
    assert tally.left == {"steps": 11, "sends": 5}


def test_each_turn_counts_for_itself() -> None:
    """Two tallies share no counter."""
    limits = Limits(same_call=1)
    assert [Tally(limits).admit(tool(), {}), Tally(limits).admit(tool(), {})] == [None, None]
