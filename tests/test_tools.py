"""Tools from functions: what the model is shown, what it may pass, and what a plugin's author is told."""

import datetime
import enum
import functools
import inspect
import json
import math
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field

from kernel.errors import PluginFault
from kernel.toolbox import Toolbox
from kernel.tools import MAX_COMPLAINTS, Context, Risk, Tool, parse_docstring, tool_from

HERE = Path(__file__)


def made(function: Callable[..., Any], **traits: Any) -> Tool:
    return tool_from(function, plugin="demo", **traits)


def line_at(where: str) -> str:
    """The source line that a `file:line` points at; it must be in this file."""
    file, _, number = where.rpartition(":")
    assert Path(file) == HERE
    return HERE.read_text("utf-8").splitlines()[int(number) - 1].strip()


# -- what the model is shown ---------------------------------------------------------------------------------


class Spot(BaseModel):
    """A place on the map."""

    title: str
    height: float = 0.0


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


def pin(
    name: str,
    spots: list[Spot],
    colour: Literal["red", "blue"] = "red",
    note: str | None = None,
    times: Annotated[int, Field(ge=1, le=9, description="overruled by the docstring")] = 1,
    mood: Mood = Mood.GOOD,
    extra: Optional[dict[str, Any]] = None,  # noqa: UP045 - the old spelling is still in many plugins
) -> str:
    """Pin spots on the map.

    They stay there.

    Args:
        name: What to call it,
            in few words.
        times (int, optional): How often.

    Returns:
        Nothing that the model should read here.
    """
    return name


def test_schema_is_what_annotations_and_docstring_say() -> None:
    """Types, bounds, choices and defaults come from the annotations, texts from the docstring; nothing else."""
    tool = made(pin)
    assert tool.description == "Pin spots on the map.\n\nThey stay there."
    assert tool.parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["name", "spots"],
        "properties": {
            "name": {"type": "string", "description": "What to call it, in few words."},
            "spots": {"type": "array", "items": {"$ref": "#/$defs/Spot"}},
            "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "times": {"type": "integer", "minimum": 1, "maximum": 9, "default": 1, "description": "How often."},
            "mood": {"$ref": "#/$defs/Mood", "default": "good"},
            "extra": {
                "anyOf": [{"type": "object", "additionalProperties": True}, {"type": "null"}],
                "default": None,
            },
        },
        "$defs": {
            "Mood": {"type": "string", "enum": ["good", "bad"]},
            "Spot": {
                "type": "object",
                "description": "A place on the map.",
                "required": ["title"],
                "properties": {"title": {"type": "string"}, "height": {"type": "number", "default": 0.0}},
            },
        },
    }


def test_a_tool_without_parameters_takes_an_empty_object() -> None:
    """Servers want an object schema with properties, even when there are none."""

    def ping() -> str:
        """Ping."""
        return "pong"

    assert made(ping).parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert made(ping).validate({}) == {}


def test_only_pydantic_s_own_titles_are_taken_out() -> None:
    """A property called title or properties stays, and so does a title that is part of a default value."""

    def book(
        title: str,
        properties: dict[str, str],
        shelf: Annotated[dict[str, Any], Field(examples=[{"title": "b"}])] = {"title": "a", "properties": {}},  # noqa: B006
    ) -> None:
        """Book."""

    properties = made(book).parameters["properties"]
    assert properties == {
        "title": {"type": "string"},
        "properties": {"type": "object", "additionalProperties": {"type": "string"}},
        "shelf": {
            "type": "object",
            "additionalProperties": True,
            "default": {"title": "a", "properties": {}},
            "examples": [{"title": "b"}],
        },
    }


def test_annotated_describes_what_the_docstring_does_not() -> None:
    """A description in Annotated stands where the docstring is silent; an alias there renames nothing."""

    def look(word: Annotated[str, Field(description="what to seek", alias="w", validation_alias="v")]) -> None:
        """Look."""

    tool = made(look)
    assert tool.parameters["properties"] == {"word": {"type": "string", "description": "what to seek"}}
    assert tool.validate({"word": "x"}) == {"word": "x"}


def test_a_default_that_is_no_json_is_kept_for_the_function_alone() -> None:
    """A sentinel as default makes no noise and no schema, and is what the function gets."""
    missing = object()

    def seek(what: Any = missing, on: datetime.date = datetime.date(2026, 1, 2)) -> None:
        """Seek."""

    tool = made(seek)
    assert tool.parameters["properties"]["what"] == {}
    assert tool.parameters["properties"]["on"]["default"] == "2026-01-02"
    assert tool.validate({}) == {"what": missing, "on": datetime.date(2026, 1, 2)}


def test_sync_and_async_functions_become_tools_unchanged() -> None:
    """The decorated function stays itself, and its traits are the declared ones; undeclared risk is exec."""

    def one() -> None:
        """One."""

    async def two() -> None:
        """Two."""

    assert [made(one).function, made(two).function] == [one, two]
    assert [made(one).risk, made(two, risk=Risk.READ, parallel=True).risk] == [Risk.EXEC, Risk.READ]
    assert [made(one).parallel, made(two, risk=Risk.READ, parallel=True).parallel] == [False, True]
    assert made(one, name="other-name_1").name == "other-name_1"
    assert made(one).plugin == "demo"


def test_where_points_at_the_author_s_function() -> None:
    """file:line of the function itself, also through a decorator that keeps its signature."""

    def plain(count: int) -> None:
        """Plain."""

    @functools.wraps(plain)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        plain(*args, **kwargs)

    assert line_at(made(plain).where).startswith("def plain")
    assert line_at(made(wrapper).where).startswith("def plain")
    assert list(made(wrapper).parameters["properties"]) == ["count"]


# -- the context ---------------------------------------------------------------------------------------------


def plainly(context: Context, word: str) -> None:
    """Tool."""


def quoted(word: str, ctx: "Context") -> None:
    """Tool."""


def optional(word: str, *, ctx: Context | None = None) -> None:
    """Tool."""


def annotated(word: str, ctx: Annotated[Context, "mine"]) -> None:
    """Tool."""


@pytest.mark.parametrize(
    ("function", "name"), [(plainly, "context"), (quoted, "ctx"), (optional, "ctx"), (annotated, "ctx")]
)
def test_the_context_is_injected_and_hidden(function: Callable[..., Any], name: str) -> None:
    """However it is spelled, the model neither sees the Context parameter nor can pass it."""
    tool = made(function)
    assert tool.context_name == name
    assert list(tool.parameters["properties"]) == ["word"]
    assert tool.validate({"word": "x"}) == {"word": "x"}
    with pytest.raises(ValueError, match=f"{name}: Extra inputs are not permitted"):
        tool.validate({"word": "x", name: None})


def test_only_the_type_makes_a_context() -> None:
    """A string that is called context is an argument like any other."""

    def explain(context: str) -> None:
        """Explain."""

    tool = made(explain)
    assert tool.context_name is None
    assert tool.validate({"context": "x"}) == {"context": "x"}


# -- names that pydantic would trip on -----------------------------------------------------------------------


def test_any_parameter_name_works_without_noise() -> None:
    """Names of pydantic's own and a leading underscore are an author's right; warnings are errors in this test."""

    def awkward(  # noqa: PLR0913, RUF100
        self: str, cls: int, copy: str, json: str, schema: str, model_config: str, model_dump: str, _x: str = "x"
    ) -> str:
        """Awkward.

        Args:
            copy: How many.
        """
        return f"{self}{cls}{copy}{json}{schema}{model_config}{model_dump}{_x}"

    tool = made(awkward, target="copy")
    names = ["self", "cls", "copy", "json", "schema", "model_config", "model_dump", "_x"]
    assert list(tool.parameters["properties"]) == names
    assert tool.parameters["required"] == names[:-1]
    assert tool.parameters["properties"]["copy"] == {"type": "string", "description": "How many."}
    raw: dict[str, Any] = dict(zip(names, ["a", "2", "c", "d", "e", "f", "g"], strict=False))
    assert tool.function(**tool.validate(raw)) == "a2cdefgx"
    with pytest.raises(ValueError, match="arg__x: Extra inputs are not permitted"):
        tool.validate({**raw, "arg__x": "in by the back door"})


# -- what a plugin's author is told --------------------------------------------------------------------------


def yields() -> Iterator[int]:
    """Yield."""
    yield 1


async def yields_slowly() -> AsyncIterator[int]:
    """Yield."""
    yield 1


@functools.wraps(yields)
def yields_hidden() -> Iterator[int]:
    return yields()


def undocumented() -> None: ...


def blank() -> None:
    """ """


def only_arguments(word: str) -> None:
    """
    Args:
        word: A word.
    """


def many(*words: str) -> None:
    """Many."""


def named(**words: str) -> None:
    """Named."""


def positional(word: str, /) -> None:
    """Positional."""


def bare(word) -> None:  # noqa: ANN001 - the point
    """Bare."""


def callback(then: Callable[[], None]) -> None:
    """Call back."""


def nowhere(word: "NotThere") -> None:  # type: ignore[name-defined]  # noqa: F821
    """Nowhere."""


def no_attribute(word: "json.NotThere") -> None:  # type: ignore[name-defined]
    """No attribute."""


def half(words: "list[") -> None:  # type: ignore[valid-type]  # noqa: F722
    """Half."""


def foreign(word: Toolbox) -> None:
    """Foreign."""


def regex(word: Annotated[str, Field(pattern="(")]) -> None:
    """Regex."""


def endless(number: float = math.inf) -> None:
    """Endless."""


def field_default(number: int = Field(3, ge=1)) -> None:
    """Field."""


def two_contexts(one: Context, two: Context) -> None:
    """Two."""


BROKEN = [
    (yields, {}, "'yields' yields"),
    (yields_slowly, {}, "yields"),
    (yields_hidden, {}, "yields"),
    (undocumented, {}, "has no docstring"),
    (blank, {}, "has no docstring"),
    (only_arguments, {}, "has no docstring"),
    (many, {}, "'words' must be a plain or keyword parameter"),
    (named, {}, "'words' must be a plain or keyword parameter"),
    (positional, {}, "'word' must be a plain or keyword parameter"),
    (bare, {}, "'word' has no annotation"),
    (callback, {}, "Cannot generate a JsonSchema"),
    (nowhere, {}, "'NotThere' is not defined"),
    (no_attribute, {}, "has no attribute 'NotThere'"),
    (half, {}, "must be an expression"),
    (foreign, {}, "Unable to generate pydantic-core schema for .*Toolbox"),
    (regex, {}, "unclosed group"),
    (endless, {}, "not JSON compliant"),
    (field_default, {}, "'number': Field"),
    (two_contexts, {}, "'one' and 'two' are both the Context"),
    (pin, {"name": "a b"}, "tool name 'a b' must match"),
    (pin, {"name": "时间"}, "must match"),
    (pin, {"name": "x" * 65}, "must match"),
    (pin, {"name": "ok\n"}, "must match"),
    (pin, {"target": "nobody"}, "target 'nobody' is not one of its arguments"),
    (plainly, {"target": "context"}, "target 'context' is not one of its arguments"),
    (pin, {"paralel": True}, "unexpected keyword argument 'paralel'"),
    *[(pin, {"timeout": odd}, "is not a number of seconds above 0") for odd in ("30", 0, -1, math.inf, math.nan)],
]


@pytest.mark.parametrize(("function", "traits", "words"), BROKEN)
def test_a_broken_tool_fails_at_registration(function: Callable[..., Any], traits: dict[str, Any], words: str) -> None:
    """Each fault is a PluginFault in one line, with file:line of the function and the reason."""
    with pytest.raises(PluginFault, match=words) as caught:
        made(function, **traits)
    assert "\n" not in str(caught.value)
    assert f"def {inspect.unwrap(function).__name__}(" in line_at(caught.value.where)
    assert str(caught.value).startswith(caught.value.where + ": ")


@pytest.mark.parametrize(
    "thing", [lambda: None, functools.partial(pin, "x"), len], ids=["lambda", "partial", "builtin"]
)
def test_what_is_no_plain_function_is_refused(thing: Callable[..., Any]) -> None:
    """A lambda, a partial and a builtin have no name, docstring or annotations to go by: a fault, no traceback."""
    with pytest.raises(PluginFault):
        made(thing)


def test_a_method_s_self_is_not_an_argument() -> None:
    """A bound method works; the unbound one, decorated inside its class, is told about its bare `self`."""

    class Weather:
        def ask(self, city: str) -> str:
            """Ask."""
            return city

    assert list(made(Weather().ask).parameters["properties"]) == ["city"]
    with pytest.raises(PluginFault, match="'self' has no annotation"):
        made(Weather.ask)


# -- validation ----------------------------------------------------------------------------------------------


def typed(
    number: int = 0,
    ratio: float = 0.0,
    flag: bool = False,
    word: str = "",
    words: list[str] | None = None,
    mood: Mood = Mood.GOOD,
    pick: Literal["a", "b"] = "a",
    spot: Spot | None = None,
    day: datetime.date | None = None,
    loose: dict[str, Any] | None = None,
    limited: Annotated[int, Field(ge=1, le=9)] = 1,
    counts: dict[Mood, int] | None = None,
) -> None:
    """Take all types."""


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ({"number": "10001"}, 10001),
        ({"number": 7.0}, 7),
        ({"number": 10**30}, 10**30),
        ({"ratio": 2}, 2.0),
        ({"ratio": "2.5"}, 2.5),
        ({"flag": "true"}, True),
        ({"word": "企窝"}, "企窝"),
        ({"word": ""}, ""),
        ({"words": []}, []),
        ({"words": None}, None),
        ({"mood": "bad"}, Mood.BAD),
        ({"spot": {"title": "Tai Shan", "height": 1532.7}}, Spot(title="Tai Shan", height=1532.7)),
        ({"day": "2026-02-03"}, datetime.date(2026, 2, 3)),
        ({"loose": {"a": [1, {"b": None}]}}, {"a": [1, {"b": None}]}),
        ({"counts": {"good": 1}}, {Mood.GOOD: 1}),
    ],
)
def test_what_can_be_meant_is_taken(raw: dict[str, Any], value: object) -> None:
    """Models write numbers as strings and 7.0 for 7: what loses nothing is converted to the annotated type."""
    (name,) = raw
    taken = made(typed).validate(raw)[name]
    assert taken == value
    assert type(taken) is type(value)


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        ({"number": 1.5}, "number: Input should be a valid integer, got a number with a fractional part"),
        ({"number": "ten"}, "number: Input should be a valid integer, unable to parse string as an integer"),
        ({"number": None}, "number: Input should be a valid integer"),
        ({"number": math.nan}, "number: Input should be a finite number"),
        ({"number": "9" * 5000}, "number: Unable to parse input string as an integer, exceeded maximum size"),
        ({"ratio": math.nan}, "ratio: Input should be a finite number"),
        ({"ratio": math.inf}, "ratio: Input should be a finite number"),
        ({"ratio": "-inf"}, "ratio: Input should be a finite number"),
        ({"ratio": 10**400}, "ratio: Input should be a valid number"),
        ({"flag": 2}, "flag: Input should be a valid boolean, unable to interpret input"),
        ({"word": 5}, "word: Input should be a valid string"),
        ({"words": "a"}, "words: Input should be a valid list"),
        ({"words": ["a", 1]}, "words.1: Input should be a valid string"),
        ({"mood": "sour"}, "mood: Input should be 'good' or 'bad'"),
        ({"pick": "c"}, "pick: Input should be 'a' or 'b'"),
        ({"spot": {}}, "spot.title: Field required"),
        ({"day": "soon"}, "day: Input should be a valid date or datetime, input is too short"),
        ({"limited": 10}, "limited: Input should be less than or equal to 9"),
        ({"nothing": 1}, "nothing: Extra inputs are not permitted"),
        (
            {"limited": 0, "pick": "c"},
            "pick: Input should be 'a' or 'b'; limited: Input should be greater than or equal to 1",
        ),
    ],
)
def test_what_does_not_fit_is_explained_by_name(raw: dict[str, Any], complaint: str) -> None:
    """The model reads which argument is wrong and why, by the names that it used: nothing of pydantic's inside."""
    with pytest.raises(ValueError, match=": ") as caught:
        made(typed).validate(raw)
    assert str(caught.value) == complaint


@pytest.mark.parametrize("raw", [{"\ud800": 1}, {1: 2}], ids=["half a surrogate pair", "a number as key"])
def test_a_key_that_is_no_name_is_an_ordinary_complaint(raw: dict[Any, Any]) -> None:
    """Whatever a model or a hook makes of the keys ends in a ValueError, never in another exception."""
    with pytest.raises(ValueError, match="string"):
        made(typed).validate(raw)


def test_a_thousand_mistakes_are_told_in_a_few_lines() -> None:
    """The complaint does not grow with the arguments: it says how many more there are."""
    with pytest.raises(ValueError, match=r"words\.0: .*; and 992 more$") as caught:
        made(typed).validate({"words": list(range(1000))})
    assert str(caught.value).count("words.") == MAX_COMPLAINTS


def test_exactly_as_many_mistakes_as_are_told_have_no_rest() -> None:
    """No "and 0 more"."""
    with pytest.raises(ValueError, match="words") as caught:
        made(typed).validate({"words": list(range(MAX_COMPLAINTS))})
    assert "more" not in str(caught.value)


def test_what_came_out_may_go_in_again() -> None:
    """Arguments are validated a second time after a hook changed them: their Python values must pass unchanged."""
    raw = {
        "number": "5",
        "mood": "bad",
        "spot": {"title": "x"},
        "day": "2026-02-03",
        "counts": {"bad": "2"},
        "words": ["a"],
    }
    once = made(typed).validate(raw)
    assert made(typed).validate(once) == once


def test_omitted_arguments_have_their_defaults_and_share_nothing() -> None:
    """Every parameter is passed; a mutable default is fresh for each call; None may be a default of any type."""

    def collect(into: list[str] = [], count: int = None) -> None:  # type: ignore[assignment]  # noqa: B006, RUF013
        """Collect."""

    tool = made(collect)
    first = tool.validate({})
    assert first == {"into": [], "count": None}
    first["into"].append("x")
    assert tool.validate({}) == {"into": [], "count": None}


# -- docstrings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("doc", "summary", "arguments"),
    [
        ("", "", {}),
        ("Just this.", "Just this.", {}),
        ("One.\n\nTwo.\n", "One.\n\nTwo.", {}),
        ("S.\n\nArgs:\n    a: A.\n    b: B.", "S.", {"a": "A.", "b": "B."}),
        ("S.\n\nArguments:  \n  a: A.", "S.", {"a": "A."}),
        ("S.\n\nArgs:\n\ta: A.\n\t\tmore", "S.", {"a": "A. more"}),
        ("S.\n\nArgs:\n    a (list[int], optional): A.", "S.", {"a": "A."}),
        ("S.\n\nArgs:\n    a:\n        On its own line.", "S.", {"a": "On its own line."}),
        (
            "S.\n\nArgs:\n    a: A:\n        x: one\n        y: two\n    b: B.",
            "S.",
            {"a": "A: x: one y: two", "b": "B."},
        ),
        ("S.\n\nArgs:\n    a: see http://x.y/z: there", "S.", {"a": "see http://x.y/z: there"}),
        ("S.\n\nArgs:\n    a: A.\n\n    b: B.", "S.", {"a": "A.", "b": "B."}),
        ("S.\n\nArgs:\n    words of nobody\n    a: A.", "S.", {"a": "A."}),
        ("S.\n\nArgs:\n    a: A.\n\nReturns:\n    b: not an argument.", "S.", {"a": "A."}),
        ("S.\n\nRaises:\n    E: never.\n\nArgs:\n    a: A.", "S.", {"a": "A."}),
        ("S.\n\nArgs:\n    a: A.\n\nWarning:\n    Hot.", "S.\n\nWarning:\n    Hot.", {"a": "A."}),
        ("S.\n\nReturns:\n    x.\n\nMore to say.", "S.\n\nMore to say.", {}),
        ("S.\n\nNote: in one line stays.", "S.\n\nNote: in one line stays.", {}),
        (
            "查天气。\n\nArgs:\n    城市: 城市名，例如：北京\n    day：哪一天",
            "查天气。",
            {"城市": "城市名，例如：北京", "day": "哪一天"},
        ),
        ("查天气。\n\nArgs：\n    day: 哪一天\n        （默认今天）", "查天气。", {"day": "哪一天 （默认今天）"}),
        ("查天气。\n\n参数：\n    day：哪一天", "查天气。\n\n参数：\n    day：哪一天", {}),
    ],
)
def test_docstrings_are_split_into_text_and_arguments(doc: str, summary: str, arguments: dict[str, str]) -> None:
    """Google style, as people write it, in English and Chinese: text to the model, entries to the arguments.

    What is not understood stays in the text, so that the model can still read it.
    """
    text, found = parse_docstring(inspect.cleandoc(doc))
    assert "\n".join(line for line in text.splitlines() if line) == "\n".join(filter(None, summary.splitlines()))
    assert found == arguments


# -- the toolbox ---------------------------------------------------------------------------------------------


def test_a_tool_is_there_until_its_undo() -> None:
    """Registering returns the way back; doing that twice is harmless."""
    box, tool = Toolbox(), made(pin)
    undo = box.add(tool)
    assert [box.get("pin"), list(box), len(box)] == [tool, [tool], 1]
    undo()
    undo()
    assert [box.get("pin"), list(box), len(box)] == [None, [], 0]


def test_two_tools_of_one_name_are_refused_with_the_second_s_place() -> None:
    """The fault names the plugin that has it and the line that wants it; the first one stays."""
    box, first = Toolbox(), made(pin)
    box.add(first)
    with pytest.raises(PluginFault, match="'pin' exists already, from plugin 'demo'") as caught:
        box.add(made(typed, name="pin"))
    assert line_at(caught.value.where).startswith("def typed")
    assert box.get("pin") is first


def test_a_late_undo_does_not_take_the_successor() -> None:
    """The old copy of a reloaded plugin takes out its own tool, not the new one of the same name."""
    box = Toolbox()
    undo = box.add(made(pin))
    undo()
    fresh = made(pin)
    box.add(fresh)
    undo()
    assert box.get("pin") is fresh


def test_tools_may_go_while_they_are_listed() -> None:
    """A plugin that is unloaded in the middle of a listing does not break it."""
    box = Toolbox()
    undos = [box.add(made(pin)), box.add(made(typed))]
    seen = []
    for tool in box:
        seen.append(tool.name)
        for undo in undos:
            undo()
    assert seen == ["pin", "typed"]


@pytest.mark.parametrize("thing", [None, 3, "name", [pin]])
def test_what_cannot_be_called_is_no_tool(thing: Any) -> None:
    """As a decorator on an attribute, or with its brackets forgotten."""
    with pytest.raises(PluginFault, match="is not a function"):
        made(thing)


def test_an_invented_name_is_told_in_short() -> None:
    """The model may write a megabyte as an argument's name; the complaint goes back to it."""
    with pytest.raises(ValueError, match="Extra inputs") as caught:
        made(pin).validate({"y" * 100_000: 1})
    assert len(str(caught.value)) < 500
