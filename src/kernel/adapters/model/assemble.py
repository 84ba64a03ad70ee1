"""JSON objects to one Reply: text, calls and the ending, out of a stream or a whole document alike."""

import json
from collections.abc import Container, Mapping
from typing import Any

from kernel.adapters.model.errors import fault, fault_in
from kernel.adapters.model.reading import Json, Reader, loads, mapping, mended, objects
from kernel.adapters.model.speech import Speech
from kernel.adapters.model.wire import with_extra
from kernel.conversation import Usage
from kernel.errors import FaultKind
from kernel.ports import Chunk, Reply, RequestedCall

_WHOLE = ("", "stop", "tool_calls", "function_call", "tool_use", "end_turn", "stop_sequence", "eos", "eos_token")
"""The finish words after which nothing is missing; any other may have cut the last call in half."""
_FINISHES = {
    "length": ("length", "max_tokens", "max_output_tokens", "model_length"),
    "content_filter": ("content_filter", "sensitive", "safety", "refusal"),
}


_THOUGHTS = ("thinking", "reasoning")

LONGEST = 16_000_000
"""Bytes of one answer on the wire: a server that never stops must not fill the memory."""


def arguments_of(raw: str) -> dict[str, Any] | None:
    """The arguments as an object. None for anything else, which then is never run; no arguments are `{}`."""
    try:
        value = json.loads(raw.strip() or "{}")
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # what cannot be stored is no argument
    except (ValueError, RecursionError):
        return None
    return {} if value is None else value if isinstance(value, dict) else None


class _Call:
    """A call as its pieces come in."""

    def __init__(self, wire_id: str) -> None:
        self.wire_id = wire_id
        self.name = ""
        self.extra: Json = None
        self._pieces: list[str] = []
        self._length = 0

    @property
    def raw(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    @property
    def whole(self) -> bool:
        """Its arguments have come, to the last brace: an empty text may be half a call."""
        return self.raw != "" and arguments_of(self.raw) is not None

    def is_other(self, wire_id: str, name: str, raw: str) -> bool:
        """Whether a piece that claims this call's place begins another one."""
        if wire_id and self.wire_id and wire_id != self.wire_id:
            return name != ""
        if wire_id and name == self.name:
            return False
        return name != "" and self.whole and (raw != "" or name != self.name)

    def add(self, wire_id: str, name: str, raw: str) -> None:
        """Join a piece. Some servers repeat, or send all so far, instead of what is new."""
        self.wire_id = self.wire_id or wire_id
        if not self._length:
            self.name = name if name.startswith(self.name) else self.name + name
        if len(raw) >= self._length and raw.startswith(self.raw):
            self._pieces.clear()
        self._pieces.append(raw)
        self._length = sum(map(len, self._pieces)) if len(self._pieces) < 2 else self._length + len(raw)

    def requested(self, *, half: bool) -> RequestedCall:
        """`half`: the answer was cut off in it, so that even no arguments at all may be half of them."""
        raw = mended(self.raw)
        arguments = None if half else arguments_of(raw)
        return RequestedCall(mended(self.name), raw, arguments, mended(with_extra(self.wire_id, self.extra)))


class _Calls:
    """The calls of one answer, in the order in which they began."""

    def __init__(self) -> None:
        self.all: list[_Call] = []
        self._at: dict[int | str, _Call] = {}

    def add(self, item: Mapping[str, Json], *, alone: bool) -> None:
        """`alone`: the item is a whole call, whatever its index and id say."""
        function = mapping(item.get("function")) or item
        name, raw = _string(function.get("name")).strip(), _raw(function.get("arguments"))
        wire_id, index = _string(item.get("id")), item.get("index")
        call = None if alone else self._claimed(index, wire_id)
        if call is None or call.is_other(wire_id, name, raw):
            call = _Call(wire_id)
            self.all.append(call)
        if isinstance(index, int | str):
            self._at[index] = call
        call.add(wire_id, name, raw)
        call.extra = item.get("extra_content") or call.extra

    def _claimed(self, index: object, wire_id: str) -> _Call | None:
        if isinstance(index, int | str):
            return self._at.get(index)
        same = [call for call in self.all if wire_id and call.wire_id == wire_id]
        return next(reversed(same or self.all), None)


class Answer:
    """One answer of a server: `feed` its bytes, then `end` it; both raise ModelFault.

    `tools` are the names of the tools that were offered: only their calls are recovered from text.
    """

    def __init__(self, tools: Container[str]) -> None:
        self._tools = tools
        self._reader = Reader()
        self._speech = Speech()
        self._calls = _Calls()
        self._reasoning: list[str] = []
        self._size = 0
        self._usage = Usage()
        self._answered = False
        self._streamed = False
        self._refused = False
        self._finish = ""

    @property
    def finished(self) -> bool:
        """The server has said that this was all; at most figures may still come."""
        return self._finish != "" or self._reader.done

    def feed(self, data: bytes) -> list[Chunk]:
        self._size += len(data)
        if self._size > LONGEST:
            raise fault(FaultKind.TRUNCATED, f"the answer is longer than {LONGEST} bytes")
        text = self._read(self._reader.feed(data))
        return [Chunk(text)] if text else []

    def end(self) -> list[Chunk | Reply]:
        text = self._read(self._reader.end())
        self._check()
        text += self._speech.close()
        reply = self._reply()
        return [Chunk(text), reply] if text else [reply]

    # -- reading ---------------------------------------------------------------------------------------------

    def _read(self, found: list[dict[str, Json]]) -> str:
        try:
            return "".join([self._object(item) for item in found])
        except RecursionError:
            raise fault(FaultKind.SERVER, "the answer is nested too deeply") from None

    def _object(self, item: dict[str, Json]) -> str:
        failure = fault_in(item)
        if failure is not None:
            raise failure
        choice = next(iter(objects(item.get("choices"))), {})
        for place in (item, choice, mapping(item.get("x_groq"))):
            self._usage = _usage(place.get("usage")) or self._usage
        self._answered = self._answered or bool(choice)
        self._finish = _string(choice.get("finish_reason")).lower() or self._finish
        if self._finish == "error":
            raise fault(FaultKind.SERVER, "the server ended its answer with an error")
        delta = mapping(choice.get("delta"))
        self._streamed = self._streamed or bool(delta)
        if self._streamed:
            return self._message(delta, whole=False)
        return self._message(mapping(choice.get("message")), whole=True)

    def _message(self, message: Mapping[str, Json], *, whole: bool) -> str:
        legacy = mapping(message.get("function_call"))
        for call in [*objects(message.get("tool_calls")), *([legacy] if legacy else [])]:
            self._calls.add(call, alone=whole)
        thought = (_spoken(message.get(key)) for key in ("reasoning_content", "reasoning", "thinking"))
        self._reasoning += [next(filter(None, thought), ""), _thought(message.get("content"))]
        self._refused = self._refused or bool(message.get("refusal"))
        return self._speech.feed(_spoken(message.get("content")))

    # -- ending ----------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Is this an answer, and all of it?"""
        if self._answered:
            calls = self._calls.all
            if self.finished or self._reader.document or (calls and all(call.whole for call in calls)):
                return
            raise fault(FaultKind.TRUNCATED, "the stream stopped in the middle of the answer")
        if self._reader.first == "<":
            raise fault(FaultKind.NOT_FOUND, "a web page answered, not a model: is the address the API's?")
        if not self._reader.first or self._reader.document:
            raise fault(FaultKind.TRUNCATED, "the answer is empty or incomplete")
        raise fault(FaultKind.SERVER, "the answer holds nothing that a model said")

    def _reply(self) -> Reply:
        calls = [call for call in self._calls.all if call.name] or self._recovered()
        finish = next((kind for kind, words in _FINISHES.items() if self._finish in words), "stop")
        cut = self._finish not in _WHOLE and bool(calls) and not calls[-1].whole
        requested = tuple(call.requested(half=cut and call is calls[-1]) for call in calls)
        if requested and not cut:
            finish = "tool_calls"
        elif self._refused:
            finish = "content_filter"
        thoughts = (mended("".join(self._reasoning)), *self._speech.thoughts)
        reasoning = "\n".join(filter(None, thoughts)) or None
        return Reply(self._speech.text.strip(), requested, finish, reasoning, self._usage)

    def _recovered(self) -> list[_Call]:
        """Calls of offered tools that the model wrote out as text; others are dropped with the markup."""
        calls = _Calls()
        for block in self._speech.markup:
            value = loads(block)
            for item in objects(value) or [found for line in block.splitlines() for found in objects(loads(line))]:
                if _string(item.get("name")) in self._tools:
                    calls.add({"function": {"arguments": item.get("parameters"), **item}}, alone=True)
        return calls.all


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _raw(arguments: object) -> str:
    """Arguments as a text: some servers send the object itself."""
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _spoken(content: object) -> str:
    """The visible text of a content: a text, or a list of typed parts."""
    match content:
        case str():
            return content
        case list():
            return "".join([_spoken(part) for part in content])
        case dict() if content.get("type") not in _THOUGHTS:
            return _spoken(content.get("text"))
    return ""


def _thought(content: object) -> str:
    """The reasoning that stands among the parts of a content."""
    parts = [part for part in objects(content) if part.get("type") in _THOUGHTS]
    return "".join([_spoken(part.get(key)) for part in parts for key in (*_THOUGHTS, "text")])


def _usage(said: object) -> Usage | None:
    if not isinstance(said, dict):
        return None
    details = mapping(said.get("prompt_tokens_details"))
    cached = (details.get("cached_tokens"), said.get("prompt_cache_hit_tokens"), said.get("cached_tokens"))
    prompt, completion = _count(said.get("prompt_tokens")), _count(said.get("completion_tokens"))
    return Usage(prompt, completion, max(map(_count, cached)))


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) and 0 <= value < 1e12 else 0
