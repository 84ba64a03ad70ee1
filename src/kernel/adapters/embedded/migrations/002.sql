-- Version 2. A turn may close after one that opened later, may go on in a later process, and may be joined.
ALTER TABLE turns ADD COLUMN ended INTEGER;                     -- the order of closing, in which transcripts stand
ALTER TABLE turns ADD COLUMN resumed INTEGER NOT NULL DEFAULT 0; -- how often a later process took it up
UPDATE turns SET ended = seq WHERE ending IS NOT NULL;
DROP INDEX turns_chat;
CREATE INDEX turns_chat ON turns (chat, ended);
CREATE INDEX turns_opened ON turns (chat, seq);
CREATE INDEX turns_ended ON turns (ended);

CREATE TABLE joined (
    turn    TEXT NOT NULL REFERENCES turns (id),
    step    INTEGER NOT NULL,       -- the model reads the message before this step
    place   INTEGER NOT NULL,
    inbound TEXT NOT NULL,
    PRIMARY KEY (turn, step, place)
) STRICT;

CREATE INDEX calls_open ON calls (turn) WHERE settled IS NULL;
