"""Values as JSON and back, for the tables of the record."""

import json
from dataclasses import fields
from typing import Any, TypeVar, get_args

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from kernel.conversation import Outcome, kind_of
from kernel.errors import LedgerFault
from kernel.ports import Event, Reset
from kernel.source import Inbound, Source

T = TypeVar("T")

_INBOUND = TypeAdapter(Inbound)
_INBOUNDS = TypeAdapter(tuple[Inbound, ...])
_RESET = TypeAdapter(Reset)
_SOURCE = TypeAdapter(Source)
_OUTCOMES: dict[str, type[Any]] = {kind_of(cls.__new__(cls)): cls for cls in get_args(Outcome)}


def mended(text: str) -> str:
    """The text with each half of a surrogate pair as a question mark, which is what the model reads there too."""
    return text.encode(errors="replace").decode()


def _dump(adapter: TypeAdapter[T], value: T) -> str:
    try:
        return adapter.dump_json(value).decode()
    except PydanticSerializationError:  # a nickname that was cut in the middle of an emoji
        return mended(json.dumps(adapter.dump_python(value, mode="json"), ensure_ascii=False))


def dump_source(source: Source) -> str:
    return _dump(_SOURCE, source)


def load_source(text: str) -> Source:
    return _SOURCE.validate_json(text)


def dump_inbound(inbound: Inbound) -> str:
    return _dump(_INBOUND, inbound)


def load_inbound(text: str) -> Inbound:
    return _INBOUND.validate_json(text)


def dump_inbounds(inbounds: tuple[Inbound, ...]) -> str:
    return _dump(_INBOUNDS, inbounds)


def load_inbounds(text: str) -> tuple[Inbound, ...]:
    return _INBOUNDS.validate_json(text)


def dump_event(event: Event) -> tuple[str, str]:
    """Its kind and its JSON. Raises LedgerFault for a turn: that is on record already."""
    match event:
        case Inbound():
            return "message", dump_inbound(event)
        case Reset():
            return "reset", _dump(_RESET, event)
        case _:
            raise LedgerFault(f"{event.key} is no message")


def load_event(kind: str, text: str) -> Inbound | Reset:
    return _INBOUND.validate_json(text) if kind == "message" else _RESET.validate_json(text)


def dump_outcome(outcome: Outcome) -> tuple[str, str]:
    """Its kind and its fields as JSON."""
    values = {field.name: getattr(outcome, field.name) for field in fields(outcome)}
    return kind_of(outcome), json.dumps(values, ensure_ascii=False)


def load_outcome(kind: str, detail: str) -> Outcome:
    """Raises LedgerFault for a kind that this version does not know: it must not be mistaken for another."""
    try:
        outcome: Outcome = _OUTCOMES[kind](**json.loads(detail))
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerFault(f"the record holds an outcome {kind!r} that this version cannot read") from error
    return outcome


def load_arguments(raw: str) -> dict[str, Any]:
    """What the model's raw arguments came to, if they came to an object: nothing and `null` did, an empty one."""
    return json.loads(raw.strip() or "{}") or {}
