"""What a tool returned, as the outcome of its call: one text, of a length that a model can read."""

import dataclasses
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from pydantic import BaseModel

from kernel.conversation import BadArguments, Crashed, Denied, Failed, Ok, Outcome, Unconfirmed
from kernel.errors import LedgerFault
from kernel.media import LARGEST, MOST, Media, fits, kind_of, place_of, suffix_of

LIMIT = 2_000_000
"""Characters of one result; more is a crash of the tool."""

SHOWN = 8_000
"""Characters of a result that the model is shown, and that stand in the record."""

REASON = 2_000
"""Characters of a refusal or a failure."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a call came to, and the files that its words name, each by its place."""

    outcome: Outcome
    files: Mapping[str, bytes] = field(default_factory=dict)


def told(value: object) -> Told:
    """Text as it is, nothing as `done`, the rest as JSON; an outcome with its fields made texts.

    Bytes and `Media`, alone or anywhere inside, become files, of which the text tells the place, type and length.
    Runs code of the value's own types, so it is called inside the fence. Raises TypeError or ValueError for what
    cannot be told to a model, or is too long to.
    """
    files: dict[str, bytes] = {}
    match value:
        case Ok(said):
            return Told(Ok(_text(said, files)), files)
        case Failed(reason) | Unconfirmed(reason):
            return Told(replace(value, reason=str(reason)))
        case _:
            return Told(Ok(_text(value, files)), files)


def _text(value: object, files: dict[str, bytes]) -> str:
    if value is None:
        return "done"
    pieces = [value] if isinstance(value, str) else _encoder(files).iterencode(value)
    said, length = [], 0
    for piece in pieces:  # piece by piece: a giant must not be written out before it is refused
        length += len(piece)
        if length > LIMIT:
            raise ValueError(f"the result is longer than {LIMIT} characters")
        said.append(piece)
    return "".join(said)


def _encoder(files: dict[str, bytes]) -> json.JSONEncoder:
    return json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=partial(_jsonable, files))


def _jsonable(files: dict[str, bytes], value: object) -> object:
    match value:
        case Media(data, kind):
            return _kept_in(files, bytes(data), kind)
        case bytes() | bytearray() | memoryview():
            return _kept_in(files, bytes(value), "")
        case BaseModel():
            return value.model_dump(mode="json")
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        case _:
            raise TypeError(f"a result of type {type(value).__name__} cannot be written as JSON")


def _kept_in(files: dict[str, bytes], data: bytes, kind: str) -> dict[str, object]:
    kind = kind or kind_of(data)
    place = place_of(data, suffix_of(kind))
    files[place] = data
    if not fits(list(files.values())):
        raise ValueError(f"a result may hold {MOST} files of {LARGEST:,} bytes in all")
    return {"kept_in": place, "type": kind, "bytes": len(data)}


def trimmed(outcome: Outcome) -> Outcome:
    """With a reason that is no longer than a reason may be. What a tool said well is `kept` in whole."""
    match outcome:
        case Failed(reason) | Unconfirmed(reason) | BadArguments(reason) | Denied(_, reason) if len(reason) > REASON:
            return replace(outcome, reason=f"{reason[:REASON]}… (cut)")
        case Crashed(error, _) if len(error) > REASON:
            return replace(outcome, error=f"{error[:REASON]}… (cut)")
        case _:
            return outcome


Keep = Callable[[str, bytes], Awaitable[None]]
"""Puts a file in its place. Raises LedgerFault."""


async def stored(result: Told, keep: Keep) -> Outcome:
    """The outcome with its files in their places; one that the disk refuses is named in it."""
    outcome = result.outcome
    for place, data in result.files.items():
        try:
            await keep(place, data)
        except LedgerFault:
            if isinstance(outcome, Ok):
                outcome = Ok(f"{outcome.value}\n({place} is not there: the disk refused it)")
    return outcome


async def kept(outcome: Outcome, keep: Keep) -> Outcome:
    """A result that is longer than a model is shown goes to a file as it is; its beginning stands in the record."""
    if not isinstance(outcome, Ok) or len(outcome.value) <= SHOWN:
        return outcome
    said = outcome.value
    data = said.encode(errors="replace")
    where = place_of(data, "txt")
    try:
        await keep(where, data)
    except LedgerFault:
        where = "nowhere: the disk refused it"
    return Ok(f"{said[:SHOWN]}\n… (cut: {len(said)} characters in all; the whole is kept in {where})")
