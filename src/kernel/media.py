"""Files that come with messages and results: kept beside the record under the hash of their content, never in it."""

import base64
import binascii
import hashlib
import mimetypes
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kernel.source import Image, Inbound, Part

LARGEST = 20_000_000
"""Bytes of all files that come with one message or result; more is refused."""

MOST = 8
"""Files that come with one message or result."""

UNKNOWN = "application/octet-stream"

_SIGNATURES = {
    rb"\x89PNG\r\n\x1a\n": "image/png",
    rb"\xff\xd8\xff": "image/jpeg",
    rb"GIF8[79]a": "image/gif",
    rb"RIFF....WEBP": "image/webp",
    rb"RIFF....WAVE": "audio/x-wav",
    rb"ID3|\xff[\xe2-\xff]": "audio/mpeg",
    rb"OggS": "audio/ogg",
    rb"....ftyp": "video/mp4",
    rb"%PDF-": "application/pdf",
}
"""How files begin, and their MIME type (RFC 2046; the signatures are those of the formats' own specifications)."""

_INLINE = re.compile(r"base64://|data:[^,]*;base64,", re.IGNORECASE)
"""OneBot v11's own form of a file inside a message, and RFC 2397's."""


@dataclass(frozen=True, slots=True)
class Media:
    """A file that a tool returns: the model reads what kind it is, how long, and where it is kept.

    `kind` is a MIME type such as `image/png`; left out, it is guessed from the first bytes.
    """

    data: bytes
    kind: str = ""


def kind_of(data: bytes) -> str:
    """The MIME type that the first bytes tell."""
    found = (kind for start, kind in _SIGNATURES.items() if re.match(start, data[:16], re.DOTALL))
    return next(found, UNKNOWN)


def place_of(data: bytes, suffix: str) -> str:
    """Where a file of this content is kept, seen from the data folder."""
    name = hashlib.sha256(data).hexdigest()
    return f"blobs/{name[:2]}/{name}.{suffix}"


def suffix_of(kind: str) -> str:
    """The ending of a file of this MIME type, by Python's own table and not by what this machine has installed."""
    return (mimetypes.MimeTypes().guess_extension(kind, strict=False) or ".bin").lstrip(".")


def by_reference(inbound: Inbound) -> tuple[Inbound, Mapping[str, bytes]]:
    """The message with its inline pictures replaced by their places, and what has to be kept there.

    A picture that cannot be read, or is too much, becomes one without a reference.
    """
    if not any(isinstance(part, Image) and _INLINE.match(part.ref) for part in inbound.parts):
        return inbound, {}
    files: dict[str, bytes] = {}
    parts = tuple(_referenced(part, files) for part in inbound.parts)
    return replace(inbound, parts=parts), files


def _referenced(part: Part, files: dict[str, bytes]) -> Part:
    inline = _INLINE.match(part.ref) if isinstance(part, Image) else None
    if inline is None:
        return part
    try:
        data = base64.b64decode(inline.string[inline.end() :])
    except (binascii.Error, ValueError):
        return Image("")
    place = place_of(data, suffix_of(kind_of(data)))
    if place not in files and not fits([*files.values(), data]):
        return Image("")
    files[place] = data
    return Image(place)


def fits(files: list[bytes]) -> bool:
    """Whether these files may come with one message or result."""
    return len(files) <= MOST and sum(map(len, files)) <= LARGEST
