"""What the strictest servers refuse in a request, in OpenAI's words where OpenAI refuses it too."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ROLES = ("system", "developer", "user", "assistant", "tool")
PARTS = ("text", "image_url", "input_audio", "file", "refusal")
NAME = re.compile(r"[a-zA-Z0-9_-]+")
LONGEST = 64
"""Characters of a function name or a call id."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, and where."""

    message: str
    param: str | None = None


def faults_of(request: object) -> Iterator[Fault]:
    """Everything wrong with a chat completion request, the first first."""
    if not isinstance(request, dict):
        yield Fault("We could not parse the JSON body of your request. The API expects a JSON payload.")
        return
    if not isinstance(request.get("model"), str):
        yield Fault("you must provide a model parameter", "model")
    yield from _options(request)
    if request.get("tools") is not None:
        yield from _tools(request["tools"])
    yield from _messages(request.get("messages"))


def _options(request: Mapping[str, Any]) -> Iterator[Fault]:
    if request.get("stream_options") is not None and not request.get("stream"):
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        yield Fault(message, "stream_options")
    for name in ("tool_choice", "parallel_tool_calls"):
        if request.get(name) is not None and not request.get("tools"):
            yield Fault(f"Invalid value for '{name}': '{name}' is only allowed when 'tools' are specified.", name)


# -- tools ---------------------------------------------------------------------------------------------------


def _tools(tools: object) -> Iterator[Fault]:
    if not isinstance(tools, list) or not tools:
        yield _empty("tools", tools)
        return
    functions = [(f"tools[{at}]", _mapping(_mapping(tool).get("function"))) for at, tool in enumerate(tools)]
    for (where, function), tool in zip(functions, tools, strict=True):
        if _mapping(tool).get("type") != "function":
            yield Fault(f"Invalid value for '{where}.type': expected 'function'.", f"{where}.type")
        yield from _name(f"{where}.function.name", function.get("name"))
        yield from _schema(where, function)
    names = [str(function.get("name")) for _, function in functions]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Fault(f"Invalid 'tools': tool names must be unique, but {name!r} is not.", "tools")


def _schema(where: str, function: Mapping[str, Any]) -> Iterator[Fault]:
    kind = _mapping(function.get("parameters")).get("type")
    if kind != "object":
        message = f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
        name = function.get("name")
        yield Fault(f"Invalid schema for function '{name}': {message}", f"{where}.function.parameters")


def _name(where: str, name: object) -> Iterator[Fault]:
    yield from _string(where, name)
    if isinstance(name, str) and name and not NAME.fullmatch(name):
        pattern = "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
        yield Fault(f"Invalid '{where}': string does not match pattern. {pattern}", where)


# -- messages ------------------------------------------------------------------------------------------------


def _messages(messages: object) -> Iterator[Fault]:
    if not isinstance(messages, list) or not messages:
        yield _empty("messages", messages)
        return
    sound = True
    for at, message in enumerate(messages):
        for fault in _message(f"messages[{at}]", message):
            sound = False
            yield fault
    if sound:
        yield from _pairing(messages)
        if not any(message["role"] == "user" for message in messages):
            yield Fault("Invalid 'messages': at least one message with role 'user' is required.", "messages")


def _message(where: str, message: object) -> Iterator[Fault]:
    if not isinstance(message, dict):
        yield Fault(f"Invalid type for '{where}': expected an object, but got {_kind(message)} instead.", where)
        return
    role = message.get("role")
    if role not in ROLES:
        supported = ", ".join(f"'{known}'" for known in ROLES)
        yield Fault(f"Invalid value: '{role}'. Supported values are: {supported}.", f"{where}.role")
        return
    calls = message.get("tool_calls")
    if role == "assistant" and calls is not None:
        yield from _calls(f"{where}.tool_calls", calls)
    if role == "tool":
        yield from _string(f"{where}.tool_call_id", message.get("tool_call_id"))
    if message.get("content") is not None or not (role == "assistant" and calls):
        yield from _content(f"{where}.content", message.get("content"))


def _content(where: str, content: object) -> Iterator[Fault]:
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        yield Fault(f"Invalid value for 'content': expected a string, got {_kind(content)}.", where)
        return
    if not content:
        yield _empty(where, content)
    for at, part in enumerate(content):
        kind = _mapping(part).get("type")
        if kind not in PARTS:
            supported = ", ".join(f"'{known}'" for known in PARTS)
            yield Fault(f"Invalid value: '{kind}'. Supported values are: {supported}.", f"{where}[{at}].type")
        elif _mapping(part).get(kind) is None:
            yield Fault(f"Missing required parameter: '{where}[{at}].{kind}'.", f"{where}[{at}].{kind}")


def _calls(where: str, calls: object) -> Iterator[Fault]:
    if not isinstance(calls, list) or not calls:
        yield _empty(where, calls)
        return
    for at, call in enumerate(calls):
        function = _mapping(_mapping(call).get("function"))
        if _mapping(call).get("type") != "function":
            yield Fault(f"Missing required parameter: '{where}[{at}].type'.", f"{where}[{at}].type")
        yield from _string(f"{where}[{at}].id", _mapping(call).get("id"))
        yield from _name(f"{where}[{at}].function.name", function.get("name"))
        if not isinstance(function.get("arguments"), str):
            path = f"{where}[{at}].function.arguments"
            got = _kind(function.get("arguments"))
            yield Fault(f"Invalid type for '{path}': expected a string, but got {got} instead.", path)
    ids = [_mapping(call).get("id") for call in calls]
    for ident in dict.fromkeys(ident for ident in ids if ids.count(ident) > 1):
        yield Fault(f"Invalid '{where}': duplicate id '{ident}'.", where)


def _pairing(messages: Sequence[Mapping[str, Any]]) -> Iterator[Fault]:
    """Each call is answered once, at once: by the tool messages that follow, and by nothing else."""
    waiting: list[str] = []
    known: list[str] = []
    for at, message in enumerate(messages):
        if message["role"] == "tool":
            ident = message["tool_call_id"]
            if ident in waiting:
                waiting.remove(ident)
            else:
                yield _orphan(at, ident, known)
            continue
        yield from _unanswered(at, waiting)
        known = [call["id"] for call in message.get("tool_calls") or () if message["role"] == "assistant"]
        waiting = list(known)
    yield from _unanswered(len(messages), waiting)


def _orphan(at: int, ident: str, known: Sequence[str]) -> Fault:
    where = f"messages.[{at}].tool_call_id"
    if ident in known:
        return Fault(f"Invalid parameter: Duplicate value for 'tool_call_id' of '{ident}' in message[{at}].", where)
    if known:
        missing = "not found in 'tool_calls' of previous message."
        return Fault(f"Invalid parameter: 'tool_call_id' of '{ident}' {missing}", where)
    words = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."  # sic
    return Fault(f"Invalid parameter: {words}", f"messages.[{at}].role")


def _unanswered(at: int, waiting: Sequence[str]) -> Iterator[Fault]:
    if waiting:
        yield Fault(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(waiting)}",
            f"messages.[{at}].role",
        )


# -- the words for what is missing, empty or of the wrong type -----------------------------------------------


def _string(where: str, value: object) -> Iterator[Fault]:
    if value is None:
        yield Fault(f"Missing required parameter: '{where}'.", where)
    elif not isinstance(value, str):
        got = _kind(value)
        yield Fault(f"Invalid type for '{where}': expected a string, but got {got} instead.", where)
    elif not value:
        expected = "Expected a string with minimum length 1, but got an empty string instead."
        yield Fault(f"Invalid '{where}': empty string. {expected}", where)
    elif len(value) > LONGEST:
        expected = f"Expected a string with maximum length {LONGEST}, but got a string with length {len(value)}"
        yield Fault(f"Invalid '{where}': string too long. {expected} instead.", where)


def _empty(where: str, value: object) -> Fault:
    if value is None:
        return Fault(f"Missing required parameter: '{where}'.", where)
    if not isinstance(value, list):
        return Fault(f"Invalid type for '{where}': expected an array, but got {_kind(value)} instead.", where)
    expected = "Expected an array with minimum length 1, but got an empty array instead."
    return Fault(f"Invalid '{where}': empty array. {expected}", where)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
