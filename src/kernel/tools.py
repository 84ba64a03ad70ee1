"""A tool: schema and validation from a function's annotations and docstring; the context it is called in."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError
from pydantic.fields import FieldInfo

from kernel.errors import PluginFault
from kernel.source import ConversationId, Source

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every server takes as a function name; one bad name makes it refuse the whole request."""


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
        try:
            model = self.arguments.model_validate(dict(raw))
        except ValidationError as error:
            raise ValueError(_explain(error)) from None
        return {name: getattr(model, name) for name in type(model).model_fields}


def _explain(error: ValidationError) -> str:
    lines = []
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        place = ".".join(str(part) for part in item["loc"]) or "arguments"
        lines.append(f"{place}: {item['msg']}")
    return "; ".join(lines)


def where_of(function: Callable[..., Any]) -> str:
    """file:line of a function, or "" for one without source."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def tool_from(function: Callable[..., Any], *, plugin: str, name: str | None = None, **traits: Any) -> Tool:  # noqa: ANN401
    """Build a tool from a function. Raises PluginFault (file:line) for what a server or a reader would trip on."""
    where = where_of(function)
    name = name or function.__name__
    if not NAME.fullmatch(name):
        raise PluginFault(f"tool name {name!r} must match [A-Za-z0-9_-]{{1,64}}", where)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise PluginFault(f"tool {name!r} yields; a call has exactly one result, so return it", where)
    summary, texts = parse_docstring(inspect.getdoc(function) or "")
    if not summary:
        raise PluginFault(f"tool {name!r} has no docstring; the model would not know what it is for", where)
    try:
        arguments, context_name = _arguments_model(function, name, texts)
        schema = _strip_titles(arguments.model_json_schema())
    except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema, NameError, TypeError) as error:
        raise PluginFault(f"tool {name!r}: {str(error).splitlines()[0]}", where) from error
    target = traits.get("target")
    if target is not None and target not in arguments.model_fields:
        raise PluginFault(f"tool {name!r}: target {target!r} is not one of its arguments", where)
    return Tool(
        name=name,
        plugin=plugin,
        description=summary,
        parameters=schema,
        function=function,
        arguments=arguments,
        context_name=context_name,
        where=where,
        **traits,
    )


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
        if hints[parameter.name] is Context:
            context_name = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        text = texts.get(parameter.name)
        field: FieldInfo = Field(default, description=text) if text else Field(default)
        fields[parameter.name] = (hints[parameter.name], field)
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    return create_model(f"{name}_arguments", __config__=config, **fields), context_name


def _strip_titles(node: Any) -> Any:  # noqa: ANN401 - JSON
    """pydantic titles every field; the model pays for them in tokens. A *property* called title stays."""
    if isinstance(node, list):
        return [_strip_titles(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: {name: _strip_titles(item) for name, item in value.items()}
        if key in ("properties", "$defs") and isinstance(value, dict)
        else _strip_titles(value)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str))
    }


def parse_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Split a Google-style docstring into its text and its `Args:`; other sections are not for the model."""
    body: list[str] = []
    arguments: dict[str, str] = {}
    section, current = "", ""
    for line in doc.splitlines():
        heading = re.fullmatch(r"(Args|Arguments|Returns|Raises|Yields|Examples?|Notes?):", line)
        if heading:
            section = heading[1]
        elif not section:
            body.append(line)
        elif section.startswith("Arg"):
            entry = re.match(r"\s{1,8}\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)", line)
            if entry:
                current = entry[1]
                arguments[current] = entry[2].strip()
            elif line.strip() and current:
                arguments[current] = f"{arguments[current]} {line.strip()}".strip()
    return "\n".join(body).strip(), arguments
