"""Bytes to JSON objects: server-sent events or one JSON document, told apart by content, never by header."""

import json
from typing import Any

Json = Any
"""A value as `json.loads` gives it: whoever takes one looks before touching it."""

_BLANK = b"\xef\xbb\xbf \t\r\n"


def loads(text: str | bytes | bytearray) -> Json:
    """The JSON value; None for what is no JSON: noise on the line is skipped, not raised."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None


def mapping(value: object) -> dict[str, Json]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[dict[str, Json]]:
    """The objects in a value: itself, or those in the list that it is."""
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, dict)]


def mended(text: str) -> str:
    """The text with split surrogate pairs joined and lone halves replaced, so that it can be encoded."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Reader:
    """`feed` bytes as they come, then `end`; both give the objects that became whole.

    Lines end at \\n only: U+2028 and its kin are legal inside a JSON string.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._event = ""
        self.first = ""
        """The first visible character of the body: what kind of thing came when no object did."""
        self.done = False
        """The server said `[DONE]`."""

    @property
    def document(self) -> bool:
        """The body is JSON from its first character, not events."""
        return self.first in ("{", "[")

    def feed(self, data: bytes) -> list[dict[str, Json]]:
        self._rest += data
        if not self.first:
            self.first = self._rest.lstrip(_BLANK)[:1].decode("utf-8", "replace")
        if not self.first or self.document:
            return []
        *lines, self._rest = self._rest.split(b"\n")
        return [found for line in lines for found in self._line(line)]

    def end(self) -> list[dict[str, Json]]:
        value = loads(self._rest)
        if value is not None:
            return objects(value)
        return [found for line in self._rest.split(b"\n") for found in self._line(line)]

    def _line(self, line: bytes | bytearray) -> list[dict[str, Json]]:
        text = line.decode("utf-8", "replace").strip()
        payload = text.removeprefix("data:").strip()
        if not text:
            self._event = ""
        elif payload == "[DONE]":
            self.done = True
        elif text.startswith(("data:", "{", "[")):
            return self._payload(payload)
        return []

    def _payload(self, payload: str) -> list[dict[str, Json]]:
        """One event may span several data lines; most servers mean one line, and some forget the blank one."""
        spanning = f"{self._event}\n{payload}"
        for text in (payload, spanning):
            value = loads(text)
            if value is not None:
                self._event = ""
                return objects(value)
        self._event = spanning
        return []
