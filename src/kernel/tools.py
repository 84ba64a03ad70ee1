"""A tool: schema and validation from a function's annotations and docstring; the context it is called in."""

import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import SchemaError

from kernel.errors import PluginFault
from kernel.source import ConversationId, Source

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every server takes as a function name; one bad name makes it refuse the whole request."""

MAX_DEPTH = 64
"""Levels of lists and objects in a call's arguments."""

MAX_PLACE = 100
"""Characters of an argument's name in a complaint: the model may have invented it."""

MAX_COMPLAINTS = 8
"""Of one call's arguments; a list of a thousand wrong items is one mistake."""

_UNFIT = (PydanticUserError, SchemaError, NameError, AttributeError, SyntaxError, TypeError, ValueError)
"""What typing and pydantic raise for annotations that are wrong, or that JSON cannot carry."""


class Risk(StrEnum):
    """What a call can do, from harmless to dangerous. Undeclared counts as `exec`."""

    READ = "read"
    WRITE = "write"
    SEND = "send"
    MODERATE = "moderate"
    EXEC = "exec"


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """What the kernel can tell a tool about the turn it runs in."""

    limits_left: Mapping[str, int]
    denied: Mapping[str, str]
    quarantined: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Context:
    """Where a tool call stands. A tool that names a parameter of this type gets it; the model never sees it."""

    source: Source
    conversation: ConversationId
    turn: str
    call: str
    facts: Callable[[], TurnFacts]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may ask for.

    `target` names the argument that points at another chat; `taints` says that its result carries words of third
    parties; `lane` names what must keep its order (two sends on one channel) even in a parallel step; `timeout` is
    its own deadline in seconds, None for the host's.
    """

    name: str
    plugin: str
    description: str
    parameters: Mapping[str, Any]
    function: Callable[..., Any]
    arguments: type[BaseModel]
    context_name: str | None
    risk: Risk = Risk.EXEC
    parallel: bool = False
    idempotent: bool = False
    taints: bool = False
    target: str | None = None
    lane: str | None = None
    timeout: float | None = None
    where: str = ""

    def validate(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the function takes them. Raises ValueError with one line for each thing wrong."""
        if _deeper_than(MAX_DEPTH, raw):
            raise ValueError(f"they are nested more than {MAX_DEPTH} levels deep")
        try:
            model = self.arguments.model_validate(dict(raw))
        except ValidationError as error:
            raise ValueError(_explain(error)) from None
        return {info.alias or name: getattr(model, name) for name, info in type(model).model_fields.items()}


def _deeper_than(levels: int, value: object) -> bool:
    """Level by level, so that depth costs no stack."""
    layer = [value]
    for _ in range(levels):
        layer = [inner for one in layer for inner in _inside(one)]
        if not layer:
            return False
    return True


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


def _explain(error: ValidationError) -> str:
    lines = []
    for item in error.errors(include_url=False, include_context=False, include_input=False)[:MAX_COMPLAINTS]:
        place = ".".join(str(part) for part in item["loc"]) or "arguments"
        lines.append(f"{place[:MAX_PLACE]}: {item['msg']}")
    more = error.error_count() - len(lines)
    return "; ".join([*lines, f"and {more} more"] if more else lines)


def where_of(function: Callable[..., Any]) -> str:
    """file:line of a function, or "" for one without source."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def tool_from(function: Callable[..., Any], *, plugin: str, name: str | None = None, **traits: Any) -> Tool:  # noqa: ANN401
    """Build a tool from a function. Raises PluginFault (file:line) for what a server or a reader would trip on."""
    if not callable(function):
        raise PluginFault(f"{function!r} is not a function, so it cannot be a tool")
    where = where_of(function)
    timeout = traits.get("timeout")
    if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout < math.inf):
        raise PluginFault(f"timeout {timeout!r} is not a number of seconds above 0", where)
    name = name or str(getattr(function, "__name__", ""))
    if not NAME.fullmatch(name):
        raise PluginFault(f"tool name {name!r} must match [A-Za-z0-9_-]{{1,64}}", where)
    inner = inspect.unwrap(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise PluginFault(f"tool {name!r} yields; a call has exactly one result, so return it", where)
    summary, texts = parse_docstring(inspect.getdoc(function) or "")
    if not summary:
        raise PluginFault(f"tool {name!r} has no docstring; the model would not know what it is for", where)
    try:
        arguments, context_name = _arguments_model(function, name, texts)
        tool = Tool(
            name=name,
            plugin=plugin,
            description=summary,
            parameters=schema_of(arguments),
            function=function,
            arguments=arguments,
            context_name=context_name,
            where=where,
            **traits,
        )
    except _UNFIT as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise PluginFault(f"tool {name!r}: {reason}", where) from error
    if tool.target is not None and tool.target not in tool.parameters["properties"]:
        raise PluginFault(f"tool {name!r}: target {tool.target!r} is not one of its arguments", where)
    return tool


def _arguments_model(
    function: Callable[..., Any], name: str, texts: Mapping[str, str]
) -> tuple[type[BaseModel], str | None]:
    hints = get_type_hints(function, include_extras=True)
    context_name: str | None = None
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"parameter {parameter.name!r} must be a plain or keyword parameter")
        if parameter.name not in hints:
            raise TypeError(f"parameter {parameter.name!r} has no annotation")
        hint = hints[parameter.name]
        if hint is not Context and Context not in get_args(hint):
            fields[f"arg_{parameter.name}"] = (hint, _field(parameter, texts.get(parameter.name)))
        elif context_name is None:
            context_name = parameter.name
        else:
            raise TypeError(f"parameters {context_name!r} and {parameter.name!r} are both the Context")
    config = ConfigDict(extra="forbid", allow_inf_nan=False)
    return create_model(f"{name}_arguments", __config__=config, **fields), context_name


def _field(parameter: inspect.Parameter, text: str | None) -> FieldInfo:
    """The parameter's own name is an alias: as a field, `copy` or `_x` would clash with pydantic's names."""
    if isinstance(parameter.default, FieldInfo):
        raise TypeError(f"parameter {parameter.name!r}: Field(…) belongs into Annotated[…], not into the default")
    default = ... if parameter.default is parameter.empty else parameter.default
    said: dict[str, Any] = {"description": text} if text else {}
    field: FieldInfo = Field(default, alias=parameter.name, **said)
    return field


def schema_of(arguments: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema that the model is shown. Raises ValueError for what JSON cannot carry: infinity."""
    schema: dict[str, Any] = _strip_titles(arguments.model_json_schema(schema_generator=_Generator))
    json.dumps(schema, allow_nan=False)
    return schema


class _Generator(GenerateJsonSchema):
    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """A default that is no JSON is left out without a word: the function gets it all the same."""


def _strip_titles(node: Any) -> Any:  # noqa: ANN401 - JSON
    """pydantic titles every field; the model pays for them in tokens. A *property* called title stays."""
    if isinstance(node, list):
        return [_strip_titles(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {key: _stripped(key, value) for key, value in node.items() if key != "title"}


def _stripped(key: str, value: Any) -> Any:  # noqa: ANN401 - JSON
    match key:
        case "properties" | "$defs":  # names of the author's choice
            return {name: _strip_titles(schema) for name, schema in value.items()}
        case "default" | "examples" | "const" | "enum" | "mapping":  # values of the author's choice
            return value
        case _:
            return _strip_titles(value)


_HEADING = re.compile(r"(Args|Arguments|Returns|Raises|Yields|Examples?|Notes?)[:：]")
_ENTRY = re.compile(r"\*{0,2}(\w+)(?:\s*\([^)]*\))?[:：]\s*(.*)")


def parse_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Split a Google-style docstring into its text and its `Args:`; other known sections are not for the model."""
    body: list[str] = []
    arguments: dict[str, str] = {}
    section, current, level = "", "", 0
    for line in doc.splitlines():
        text, depth = line.strip(), len(line) - len(line.lstrip())
        if text and not depth:  # at the margin a section begins, or the text goes on
            heading = _HEADING.fullmatch(text)
            section, current, level = heading[1] if heading else "", "", 0
        if not section:
            body.append(line)
        elif text and depth and section.startswith("Arg"):
            level = level or depth
            entry = _ENTRY.fullmatch(text) if depth <= level else None  # deeper lines belong to the entry above
            if entry:
                current = entry[1]
                arguments[current] = entry[2]
            elif current:
                arguments[current] = f"{arguments[current]} {text}".strip()
    return "\n".join(body).strip(), arguments
