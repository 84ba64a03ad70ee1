"""A record that the first version wrote (its schema, its rows): this version opens it, completes it and goes on."""

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.stage import ROOT, stage

from kernel.adapters.embedded.database import VERSION

RECORD = ROOT / "tests" / "data" / "record" / "schema-1.sql"
"""Four turns: one before a reset, one whole, one that misses the result of its call, one cut off in a call; a message
that nobody had begun."""


def outcomes(path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(path)) as db:
        return dict(db.execute("SELECT id, outcome FROM calls WHERE id LIKE 'call%' AND settled IS NOT NULL"))


def test_the_first_versions_record_is_brought_up_to_date(tmp_path: Path) -> None:
    """What was said is remembered, each call has one result, nothing runs again; as it was, it is kept beside."""
    with closing(sqlite3.connect(tmp_path / "qiwo.db")) as db:
        db.executescript(RECORD.read_text("utf-8"))
    assert outcomes(tmp_path / "qiwo.db") == {"call0": "ok", "call1": "ok"}
    with stage(data=tmp_path) as play:

        async def scene() -> None:
            play.model.say("here you are")
            play.model.say("gladly")
            endings = await play.ended(7001, 5)  # the last is of what nobody had begun; this QQ does not know him yet
            assert endings == ["answered", "answered", "answered", "interrupted", "failed"]
            await play.qq.private_says(7001, "go on")
            await play.qq.sent.take(1, lambda sent: sent.text == "gladly")

        play.run(scene())
        said = str(play.model.requests[-1]["messages"])
        assert all(words in said for words in ("早上好", "then this", "nobody has begun this", "here you are"))
        assert "old answer" not in said
        assert not any(sent.text == "hi" for sent in play.qq.sent)
        assert play.query("PRAGMA user_version") == [(VERSION,)]
    assert outcomes(tmp_path / "qiwo.db") == {
        "call0": "ok",
        "call1": "ok",
        "call2": "interrupted",
        "call9": "interrupted",
    }
    assert outcomes(tmp_path / "qiwo.db.schema-1") == {"call0": "ok", "call1": "ok"}
