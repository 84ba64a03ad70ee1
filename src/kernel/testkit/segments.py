"""OneBot v11 messages: lists of segments, and the CQ codes that a plain string is parsed for."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Segment = Mapping[str, Any]
"""`{"type": …, "data": {…}}`."""

_CODE = re.compile(r"\[CQ:([\w.-]+)((?:,[^,\[\]]+)*)\]")
_ESCAPES = {"&": "&amp;", "[": "&#91;", "]": "&#93;"}


def text_segment(text: str) -> Segment:
    return {"type": "text", "data": {"text": text}}


def at_segment(user: int | str) -> Segment:
    return {"type": "at", "data": {"qq": str(user)}}


def data_of(segment: Segment) -> Mapping[str, Any]:
    """Some implementations write null for no data."""
    data = segment.get("data")
    return data if isinstance(data, Mapping) else {}


def segments_of(message: str | Segment | Sequence[Segment], *, plain: bool = False) -> list[Segment]:
    """A message in any of the forms that an implementation takes; `plain` is `auto_escape`."""
    if isinstance(message, str):
        return [text_segment(message)] if plain else list(_parsed(message))
    return [message] if isinstance(message, Mapping) else list(message)


def text_of(segments: Iterable[Segment]) -> str:
    """What a person reads, forwarded records included, one line a record."""
    return "".join(_read(segment) for segment in segments)


def cq_of(segments: Iterable[Segment]) -> str:
    """The message as a CQ string, as `raw_message` carries it."""
    return "".join(_coded(segment["type"], data_of(segment)) for segment in segments)


def _read(segment: Segment) -> str:
    data = data_of(segment)
    if segment["type"] == "node":
        return text_of(segments_of(data.get("content") or ())) + "\n"
    return str(data.get("text", "")) if segment["type"] == "text" else ""


def _coded(kind: str, data: Mapping[str, Any]) -> str:
    if kind == "text":
        return _escaped(str(data.get("text", "")))
    fields = (f",{name}={_escaped(str(value)).replace(',', '&#44;')}" for name, value in data.items())
    return f"[CQ:{kind}{''.join(fields)}]"


def _parsed(message: str) -> Iterator[Segment]:
    end = 0
    for code in _CODE.finditer(message):
        if code.start() > end:
            yield text_segment(_unescaped(message[end : code.start()]))
        pairs = (field.partition("=") for field in code[2].split(",")[1:])
        yield {"type": code[1], "data": {name: _unescaped(value) for name, _, value in pairs}}
        end = code.end()
    if message[end:]:
        yield text_segment(_unescaped(message[end:]))


def _escaped(text: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in text)


def _unescaped(text: str) -> str:
    return text.replace("&#91;", "[").replace("&#93;", "]").replace("&#44;", ",").replace("&amp;", "&")
