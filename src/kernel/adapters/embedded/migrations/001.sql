-- Version 1. Turns, steps and calls are only added, and completed once; nothing of them is ever deleted.
-- Their texts can be long, so they are ordinary tables: WITHOUT ROWID was a fifth slower.
CREATE TABLE inbox (
    seq     INTEGER PRIMARY KEY,
    key     TEXT NOT NULL UNIQUE,
    chat    TEXT NOT NULL,
    kind    TEXT NOT NULL,
    event   TEXT NOT NULL,          -- emptied when a turn takes it: the turn holds it then
    taken   TEXT                    -- the turn, or 'reset'
) STRICT;
CREATE INDEX inbox_open ON inbox (seq) WHERE taken IS NULL;

CREATE TABLE resets (
    chat    TEXT NOT NULL,
    at      REAL NOT NULL,
    after   INTEGER NOT NULL,       -- turns up to this seq belong to an earlier conversation
    PRIMARY KEY (chat, after)
) STRICT, WITHOUT ROWID;

CREATE TABLE turns (
    seq      INTEGER PRIMARY KEY,
    id       TEXT NOT NULL UNIQUE,
    chat     TEXT NOT NULL,
    source   TEXT NOT NULL,
    inbounds TEXT NOT NULL,
    opened   REAL NOT NULL,
    tainted  INTEGER NOT NULL,
    closed   REAL,                  -- NULL though it has an ending: the process died, nobody knows when
    ending   TEXT,
    reason   TEXT NOT NULL DEFAULT '',
    weight   INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX turns_chat ON turns (chat, seq);
CREATE INDEX turns_open ON turns (seq) WHERE ending IS NULL;

CREATE TABLE steps (
    turn       TEXT NOT NULL REFERENCES turns (id),
    number     INTEGER NOT NULL,
    text       TEXT NOT NULL,
    reasoning  TEXT,
    prompt     INTEGER NOT NULL,
    completion INTEGER NOT NULL,
    cached     INTEGER NOT NULL,
    PRIMARY KEY (turn, number)
) STRICT;

CREATE TABLE calls (
    id      TEXT PRIMARY KEY,
    turn    TEXT NOT NULL REFERENCES turns (id),
    step    INTEGER NOT NULL,       -- -1: the final reply
    place   INTEGER NOT NULL,
    name    TEXT NOT NULL,
    raw     TEXT NOT NULL,
    valid   INTEGER NOT NULL,       -- raw is one JSON object
    wire_id TEXT NOT NULL,
    rule    TEXT NOT NULL DEFAULT '',
    started REAL,
    settled REAL,
    outcome TEXT NOT NULL DEFAULT 'interrupted',
    detail  TEXT NOT NULL DEFAULT '{}',
    result  TEXT NOT NULL DEFAULT 'interrupted: the outcome is unknown; do not assume that it did or did not happen',
    UNIQUE (turn, step, place)
) STRICT;

CREATE TABLE timers (
    key   TEXT PRIMARY KEY,
    due   REAL NOT NULL,
    chat  TEXT NOT NULL,
    kind  TEXT NOT NULL,
    event TEXT NOT NULL
) STRICT, WITHOUT ROWID;
