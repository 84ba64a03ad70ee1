"""What goes into the record's JSON comes out of it the same."""

from dataclasses import fields
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.adapters.embedded import codec
from kernel.conversation import Outcome, kind_of
from kernel.errors import LedgerFault
from kernel.ports import Reset
from kernel.source import Inbound, Part, Role, Scene, SceneKind, Source

VALUES: dict[object, st.SearchStrategy[Any]] = {
    str: st.text(),
    int: st.integers(),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
}
"""By annotation. A new kind of field has no entry, and makes these tests fail until it has one."""


def built(cls: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(cls, **{field.name: VALUES[field.type] for field in fields(cls)})


OUTCOMES = st.one_of(*map(built, get_args(Outcome)))
PARTS = st.one_of(*map(built, get_args(Part)))
WORDS = st.text()
SECONDS = st.floats(min_value=0, max_value=1e11)
SCENES = st.builds(Scene, st.sampled_from(SceneKind), WORDS)
SOURCES = st.builds(Source, WORDS, WORDS, SCENES, WORDS, st.sampled_from(Role), WORDS)
FLAGS = st.booleans()
INBOUNDS = st.builds(
    Inbound, SOURCES, WORDS, WORDS, SECONDS, WORDS, st.lists(PARTS).map(tuple), foreign=FLAGS, addressed=FLAGS
)
RESETS = st.builds(Reset, SOURCES, WORDS, SECONDS)


@given(OUTCOMES)
def test_every_outcome_comes_back(outcome: Outcome) -> None:
    """Of the same kind, with the same fields."""
    assert codec.load_outcome(*codec.dump_outcome(outcome)) == outcome


@given(st.one_of(INBOUNDS, RESETS))
def test_every_event_comes_back(event: Inbound | Reset) -> None:
    """A message with all its parts, and a reset: never one as the other."""
    assert codec.load_event(*codec.dump_event(event)) == event


@given(st.lists(INBOUNDS, max_size=3).map(tuple), SOURCES)
def test_a_turns_messages_and_source_come_back(inbounds: tuple[Inbound, ...], source: Source) -> None:
    """In order, with role and scene as they were."""
    assert codec.load_inbounds(codec.dump_inbounds(inbounds)) == inbounds
    assert codec.load_source(codec.dump_source(source)) == source


@given(st.text(st.characters()), st.text(st.characters()))
def test_half_an_emoji_is_no_reason_to_lose_a_message(name: str, text: str) -> None:
    """A nickname or a text that was cut inside a surrogate pair is kept, with a question mark in that place."""
    inbound = Inbound(Source("qq", "1", Scene(SceneKind.GROUP, "2"), "3", Role.MEMBER, name), "k", text, 1.0)
    back = codec.load_event(*codec.dump_event(inbound))
    assert isinstance(back, Inbound)
    assert (back.source.name, back.text) == (codec.mended(name), codec.mended(text))
    assert len(back.text) == len(text)


def test_every_outcome_has_a_word_of_its_own() -> None:
    """Two kinds under one word could not be told apart any more."""
    kinds = [kind_of(cls.__new__(cls)) for cls in get_args(Outcome)]
    assert len(set(kinds)) == len(kinds) == 15


@pytest.mark.parametrize("stored", [("vanished", "{}"), ("ok", "{}"), ("ok", '{"value": "x", "more": 1}'), ("ok", "")])
def test_an_outcome_of_another_version_is_not_mistaken(stored: tuple[str, str]) -> None:
    """A kind, or fields, that this version does not know are a fault, not another outcome."""
    with pytest.raises(LedgerFault, match=f"an outcome '{stored[0]}' that this version cannot read"):
        codec.load_outcome(*stored)


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [("", {}), ("  \n", {}), ("\u00a0", {}), ("null", {}), ('{"a": [1, null]}', {"a": [1, None]})],
)
def test_arguments_are_read_as_the_model_adapter_reads_them(raw: str, arguments: dict[str, Any]) -> None:
    """Nothing at all is an empty object, however it is spaced."""
    assert codec.load_arguments(raw) == arguments
