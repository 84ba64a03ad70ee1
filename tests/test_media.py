"""Files stand beside the record, under the hash of their content: a tool's, and the pictures inside messages."""

import asyncio
import base64
import hashlib
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.parts import message, started
from tests.stage import stage

from kernel import Media, Plugin
from kernel.conversation import Ok
from kernel.media import by_reference, kind_of, suffix_of
from kernel.ports import Reply
from kernel.source import Image, Inbound, Part, Role, Text, conversation_of
from kernel.testkit import FakeClock, ScriptedModel, calling, settle

PNG = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
    + struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    + struct.pack(">I", zlib.crc32(b"IHDR" + struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)))
)


def place(data: bytes, suffix: str) -> str:
    name = hashlib.sha256(data).hexdigest()
    return f"blobs/{name[:2]}/{name}.{suffix}"


def inline(data: bytes) -> Image:
    return Image("base64://" + base64.b64encode(data).decode())


def pictured(text: str, *parts: Part) -> Inbound:
    return replace(message(text), parts=parts)


@pytest.mark.parametrize(
    ("start", "kind", "suffix"),
    [
        (PNG, "image/png", "png"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "image/jpeg", "jpg"),
        (b"GIF89a", "image/gif", "gif"),
        (b"RIFF\n\x00\x00\x00WEBPVP8 ", "image/webp", "webp"),
        (b"RIFF\n\x00\x00\x00WAVEfmt ", "audio/x-wav", "wav"),
        (b"ID3\x04", "audio/mpeg", "mp3"),
        (b"\xff\xfb\x90", "audio/mpeg", "mp3"),
        (b"OggS\x00", "audio/ogg", "bin"),
        (b"\x00\x00\x00\x18ftypmp42", "video/mp4", "mp4"),
        (b"%PDF-1.7", "application/pdf", "pdf"),
        (b"", "application/octet-stream", "bin"),
        (b"hello", "application/octet-stream", "bin"),
    ],
)
def test_the_first_bytes_tell_the_kind(start: bytes, kind: str, suffix: str) -> None:
    """As the formats' own specifications say."""
    assert kind_of(start) == kind
    assert suffix_of(kind) == suffix


# -- pictures inside messages --------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["base64://", "data:image/png;base64,", "BASE64://"])
def test_an_inline_picture_becomes_a_reference(head: str) -> None:
    """OneBot's form and RFC 2397's; the rest of the message is as it was."""
    ref = head + base64.b64encode(PNG).decode()
    said, files = by_reference(pictured("look", Text("look"), Image(ref), Image("https://example.com/a.png")))
    assert said.parts == (Text("look"), Image(place(PNG, "png")), Image("https://example.com/a.png"))
    assert files == {place(PNG, "png"): PNG}


def test_what_cannot_be_read_or_is_too_much_is_a_picture_without_a_reference() -> None:
    """Eight files of 20 MB in all; the same one again costs nothing."""
    pictures = [inline(bytes([number])) for number in range(9)]
    said, files = by_reference(pictured("", Image("base64://%%%A"), *pictures, pictures[0]))
    refs = [part.ref for part in said.parts if isinstance(part, Image)]
    assert refs[0] == ""
    assert refs[1:9] == list(files)
    assert refs[9:] == ["", refs[1]]
    said, files = by_reference(pictured("", inline(b"x" * 12_000_000), inline(b"y" * 12_000_000)))
    assert [part.ref for part in said.parts if isinstance(part, Image)] == [*files, ""]


# -- what tools return ---------------------------------------------------------------------------------------


def told(tmp_path: Path, make: Callable[[], object]) -> str:
    """What the model reads of a call whose tool returns this."""

    async def play() -> str:
        plugin = Plugin("painter")

        @plugin.tool(risk="read")
        async def paint() -> object:
            """Paint."""
            return make()

        model = ScriptedModel(calling(("paint", {})), Reply("there"))
        parts = await started(model, plugin, data_dir=tmp_path)
        asked = message("paint", role=Role.OPERATOR)
        await parts.kernel.submit(asked)
        await quiet(parts.clock)
        [turn] = (await parts.ledger.transcript(conversation_of(asked.source), 9)).turns
        await parts.kernel.stop()
        outcome = turn.exchanges[0].outcome
        assert isinstance(outcome, Ok)
        return outcome.value

    return asyncio.run(play())


async def quiet(clock: FakeClock) -> None:
    """Files are written in a thread, which takes real time."""
    for _ in range(20):
        await settle()
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: PNG, {"kept_in": place(PNG, "png"), "type": "image/png", "bytes": len(PNG)}),
        (lambda: Media(PNG), {"kept_in": place(PNG, "png"), "type": "image/png", "bytes": len(PNG)}),
        (
            lambda: Media(b"a,b", "text/csv"),
            {"kept_in": place(b"a,b", "csv"), "type": "text/csv", "bytes": 3},
        ),
        (lambda: Ok(bytearray(PNG)), {"kept_in": place(PNG, "png"), "type": "image/png", "bytes": len(PNG)}),  # type: ignore[arg-type]
    ],
)
def test_a_file_is_told_by_its_place(tmp_path: Path, make: Callable[[], object], wanted: dict[str, Any]) -> None:
    """A result with nothing but a picture is a result (AstrBot's audio-only results lost theirs)."""
    assert json.loads(told(tmp_path, make)) == wanted
    kept = tmp_path / wanted["kept_in"]
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == kept.stem
    assert kept.stat().st_mode & 0o077 == 0


def test_files_may_stand_anywhere_in_a_result(tmp_path: Path) -> None:
    """Each by its place, the words around them as they are."""
    said = json.loads(told(tmp_path, lambda: {"title": "two", "pages": [Media(b"1"), b"2"]}))
    assert said["title"] == "two"
    assert [(tmp_path / page["kept_in"]).read_bytes() for page in said["pages"]] == [b"1", b"2"]


def test_a_file_that_the_disk_refuses_is_named(tmp_path: Path) -> None:
    """The call went well all the same; the model knows that the file is not there."""
    (tmp_path / "blobs").write_text("in the way")
    assert f"({place(PNG, 'png')} is not there: the disk refused it)" in told(tmp_path, lambda: PNG)


PAINTER = '''
from qiwo import Media, Plugin
plugin = Plugin("painter")
@plugin.tool(risk="read")
async def paint() -> Media:
    """Paint."""
    return Media(b"\\x89PNG\\r\\n\\x1a\\n and so on")
'''


def test_no_base64_in_the_record(tmp_path: Path) -> None:
    """Through the real app: a picture inside a message, and one that a tool returns."""
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "painter.py").write_text(PAINTER, "utf-8")
    picture = PNG + bytes(range(256)) * 40
    with stage(plugins=plugins, env={"SUPERUSERS": "30001"}) as play:

        async def scene(user: int) -> None:
            play.model.call(("paint", {}))
            play.model.say("painted")
            segments = [{"type": "text", "data": {"text": "like this"}}, as_segment(picture)]
            await play.qq.private_says(user, segments)
            await play.qq.sent.take(1, lambda sent: sent.text == "painted")
            await play.ended(user, 1)

        user = play.newcomer()
        play.run(scene(user))
        [row] = play.calls(user)
        assert (row.name, row.outcome) == ("paint", "ok")
        [(inbounds,)] = play.query("SELECT inbounds FROM turns")
        [_, part] = json.loads(inbounds)[0]["parts"]
        assert (play.bot.data / part["ref"]).read_bytes() == picture
        assert (play.bot.data / json.loads(row.result)["kept_in"]).read_bytes().startswith(b"\x89PNG")
        database = b"".join(path.read_bytes() for path in play.bot.data.glob("qiwo.db*"))
        assert base64.b64encode(picture)[:60] not in database


def as_segment(data: bytes) -> dict[str, Any]:
    return {"type": "image", "data": {"file": inline(data).ref}}
