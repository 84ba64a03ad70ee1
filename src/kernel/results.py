"""What a tool returned, as the outcome of its call: one text, of a length that a model can read."""

import dataclasses
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

from pydantic import BaseModel

from kernel.conversation import BadArguments, Crashed, Denied, Failed, Ok, Outcome, Unconfirmed
from kernel.errors import LedgerFault

LIMIT = 2_000_000
"""Characters of one result; more is a crash of the tool."""

SHOWN = 8_000
"""Characters of a result that the model is shown, and that stand in the record."""

REASON = 2_000
"""Characters of a refusal or a failure."""


def outcome_of(value: object) -> Outcome:
    """Text as it is, nothing as `done`, the rest as JSON; an outcome with its fields made texts.

    Runs code of the value's own types, so it is called inside the fence. Raises TypeError or ValueError for what
    cannot be told to a model, or is too long to.
    """
    match value:
        case Ok(said):
            return Ok(_text(said))
        case Failed(reason) | Unconfirmed(reason):
            return replace(value, reason=str(reason))
        case _:
            return Ok(_text(value))


def _text(value: object) -> str:
    if value is None:
        return "done"
    pieces = [value] if isinstance(value, str) else _ENCODER.iterencode(value)
    told, length = [], 0
    for piece in pieces:  # piece by piece: a giant must not be written out before it is refused
        length += len(piece)
        if length > LIMIT:
            raise ValueError(f"the result is longer than {LIMIT} characters")
        told.append(piece)
    return "".join(told)


def _jsonable(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"a result of type {type(value).__name__} cannot be written as JSON")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_jsonable)


def trimmed(outcome: Outcome) -> Outcome:
    """With a reason that is no longer than a reason may be. What a tool said well is `kept` in whole."""
    match outcome:
        case Failed(reason) | Unconfirmed(reason) | BadArguments(reason) | Denied(_, reason) if len(reason) > REASON:
            return replace(outcome, reason=f"{reason[:REASON]}… (cut)")
        case Crashed(error, _) if len(error) > REASON:
            return replace(outcome, error=f"{error[:REASON]}… (cut)")
        case _:
            return outcome


async def kept(outcome: Outcome, keep: Callable[[bytes, str], Awaitable[str]]) -> Outcome:
    """A result that is longer than a model is shown goes to a file as it is; its beginning stands in the record."""
    if not isinstance(outcome, Ok) or len(outcome.value) <= SHOWN:
        return outcome
    try:
        where = await keep(outcome.value.encode(errors="replace"), "txt")
    except LedgerFault:
        where = "nowhere: the disk refused it"
    said = outcome.value
    return Ok(f"{said[:SHOWN]}\n… (cut: {len(said)} characters in all; the whole is kept in {where})")
