PRAGMA user_version = 1;
BEGIN TRANSACTION;
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
INSERT INTO "calls" VALUES('call0','turn0',0,0,'output_send__qq','{"text": "hi"}',1,'call_call0','floor',1764550000.0,1764550000.0,'ok','{"value": "sent"}','sent');
INSERT INTO "calls" VALUES('reply0','turn0',-1,0,'reply','old answer',1,'','',1764550000.0,1764550000.0,'ok','{"value": "sent"}','sent');
INSERT INTO "calls" VALUES('call1','turn1',0,0,'output_send__qq','{"text": "hi"}',1,'call_call1','floor',1764550001.0,1764550001.0,'ok','{"value": "sent"}','sent');
INSERT INTO "calls" VALUES('reply1','turn1',-1,0,'reply','早上好',1,'','',1764550001.0,1764550001.0,'ok','{"value": "sent"}','sent');
INSERT INTO "calls" VALUES('call2','turn2',0,0,'output_send__qq','{"text": "hi"}',1,'call_call2','floor',1764550002.0,NULL,'interrupted','{}','interrupted: the outcome is unknown; do not assume that it did or did not happen');
INSERT INTO "calls" VALUES('reply2','turn2',-1,0,'reply','then this',1,'','',1764550002.0,1764550002.0,'ok','{"value": "sent"}','sent');
INSERT INTO "calls" VALUES('call9','turn9',0,0,'output_send__qq','{"text": "hi"}',1,'call_call9','floor',1764550009.0,NULL,'interrupted','{}','interrupted: the outcome is unknown; do not assume that it did or did not happen');
CREATE TABLE inbox (
    seq     INTEGER PRIMARY KEY,
    key     TEXT NOT NULL UNIQUE,
    chat    TEXT NOT NULL,
    kind    TEXT NOT NULL,
    event   TEXT NOT NULL,          -- emptied when a turn takes it: the turn holds it then
    taken   TEXT                    -- the turn, or 'reset'
) STRICT;
INSERT INTO "inbox" VALUES(1,'10000/private:7001/0','qq/10000/private/7001','message','','turn0');
INSERT INTO "inbox" VALUES(2,'10000/private:7001/reset','qq/10000/private/7001','reset','','reset');
INSERT INTO "inbox" VALUES(3,'10000/private:7001/1','qq/10000/private/7001','message','','turn1');
INSERT INTO "inbox" VALUES(4,'10000/private:7001/2','qq/10000/private/7001','message','','turn2');
INSERT INTO "inbox" VALUES(5,'10000/private:7001/9','qq/10000/private/7001','message','','turn9');
INSERT INTO "inbox" VALUES(6,'10000/private:7001/10','qq/10000/private/7001','message','{"source":{"platform":"qq","account":"10000","scene":{"kind":"private","id":"7001"},"user":"7001","role":"friend","name":"小明"},"key":"10000/private:7001/10","text":"nobody has begun this","arrived":1764550010.0,"message_id":"10","parts":[{"text":"nobody has begun this"}],"foreign":false,"addressed":true}',NULL);
CREATE TABLE resets (
    chat    TEXT NOT NULL,
    at      REAL NOT NULL,
    after   INTEGER NOT NULL,       -- turns up to this seq belong to an earlier conversation
    PRIMARY KEY (chat, after)
) STRICT, WITHOUT ROWID;
INSERT INTO "resets" VALUES('qq/10000/private/7001',1764550000.7,1);
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
INSERT INTO "steps" VALUES('turn0',0,'',NULL,10,2,0);
INSERT INTO "steps" VALUES('turn1',0,'',NULL,10,2,0);
INSERT INTO "steps" VALUES('turn2',0,'',NULL,10,2,0);
INSERT INTO "steps" VALUES('turn9',0,'',NULL,0,0,0);
CREATE TABLE timers (
    key   TEXT PRIMARY KEY,
    due   REAL NOT NULL,
    chat  TEXT NOT NULL,
    kind  TEXT NOT NULL,
    event TEXT NOT NULL
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
INSERT INTO "turns" VALUES(1,'turn0','qq/10000/private/7001','{"platform":"qq","account":"10000","scene":{"kind":"private","id":"7001"},"user":"7001","role":"friend","name":"小明"}','[{"source":{"platform":"qq","account":"10000","scene":{"kind":"private","id":"7001"},"user":"7001","role":"friend","name":"小明"},"key":"10000/private:7001/0","text":"before the reset","arrived":1764550000.0,"message_id":"0","parts":[{"text":"before the reset"}],"foreign":false,"addressed":true}]',1764550000.0,0,1764550000.5,'answered','',0);
INSERT INTO "turns" VALUES(2,'turn1','qq/10000/private/7001','{"platform":"qq","account":"10000","scene":{"kind":"private","id":"7001"},"user":"7001","role":"friend","name":"小明"}','[{"source":{"platform":"qq","account":"10000","scene":{"kind":"private","id":"7001"},"user":"7001","role":"friend","name":"小明"},"key":"10000/private:7001/1","text":"你好","arrived":1764550001.0,"message_id":"1","parts":[{"text":"你好"}],"foreign":false,"addressed":true}]',1764550001.0,0,1764550001.5,'answered','',0);
INSERT INTO "turns" VALUES(3,'turn2','qq/10000/private/7001','{"platform":"qq","account":"10000","scene":{"kind":"private","id":"7001"},"user":"7001","role":"friend","name":"小明"}','[{"source":{"platform":"qq","account":"10000","scene":{"kind":"private","id":"7001"},"user":"7001","role":"friend","name":"小明"},"key":"10000/private:7001/2","text":"and then?","arrived":1764550002.0,"message_id":"2","parts":[{"text":"and then?"}],"foreign":false,"addressed":true}]',1764550002.0,0,1764550002.5,'answered','',0);
INSERT INTO "turns" VALUES(4,'turn9','qq/10000/private/7001','{"platform":"qq","account":"10000","scene":{"kind":"private","id":"7001"},"user":"7001","role":"friend","name":"小明"}','[{"source":{"platform":"qq","account":"10000","scene":{"kind":"private","id":"7001"},"user":"7001","role":"friend","name":"小明"},"key":"10000/private:7001/9","text":"cut off","arrived":1764550009.0,"message_id":"9","parts":[{"text":"cut off"}],"foreign":false,"addressed":true}]',1764550009.0,0,NULL,NULL,'',0);
CREATE INDEX inbox_open ON inbox (seq) WHERE taken IS NULL;
CREATE INDEX turns_chat ON turns (chat, seq);
CREATE INDEX turns_open ON turns (seq) WHERE ending IS NULL;
COMMIT;
