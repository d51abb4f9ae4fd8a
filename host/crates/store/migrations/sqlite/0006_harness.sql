-- The harness of a scenario: a chain of its own beside that of the weights, proposals that change it, and what people
-- ask of it.

ALTER TABLE scenarios ADD COLUMN harness_head TEXT;     -- release id; null before the first
ALTER TABLE releases ADD COLUMN surface TEXT NOT NULL DEFAULT 'weights' CHECK (surface IN ('weights', 'harness'));

-- Admitted changes; each made one release, which waits or was decided upon.
CREATE TABLE proposals (
    tenant     TEXT    NOT NULL,
    scenario   TEXT    NOT NULL,
    id         TEXT    NOT NULL,               -- digest of what is proposed
    request    TEXT,                           -- the instruction that it answers
    release_id TEXT    NOT NULL,
    session    TEXT,                           -- that it was learned from; null: none, or erased
    body       TEXT    NOT NULL,               -- JSON
    PRIMARY KEY (tenant, scenario, id),
    UNIQUE (tenant, scenario, release_id),
    FOREIGN KEY (tenant, scenario, release_id) REFERENCES releases (tenant, scenario, release_id)
) STRICT;
CREATE INDEX proposals_by_request ON proposals (tenant, scenario, request) WHERE request IS NOT NULL;

-- Records have a third kind. A constraint cannot be changed in place, so the two tables that hold it are written anew.
CREATE TABLE records_anew (
    tenant        TEXT    NOT NULL,
    scenario      TEXT    NOT NULL,
    sequence      INTEGER NOT NULL,
    id            TEXT    NOT NULL,
    kind          TEXT    NOT NULL CHECK (kind IN ('inference', 'report', 'instruction')),
    created_at_ms INTEGER,
    session       TEXT,                        -- or its digest, where it is long
    call          TEXT,                        -- kind of side call; null: a turn of the conversation
    status        TEXT    CHECK (status IN ('complete', 'cancelled', 'failed')),
    capture       INTEGER CHECK (capture IN (0, 1)),
    stored_bytes  INTEGER NOT NULL,            -- of trace, tokens and body
    trace         TEXT,                        -- JSON: release spans and sampling parameters
    logprobs      BLOB,                        -- f32, little-endian
    output        BLOB,                        -- u32, little-endian
    prompt        BLOB,                        -- u32, little-endian
    body_bytes    INTEGER NOT NULL,            -- before compression
    body          BLOB    NOT NULL,            -- JSON, zstd
    PRIMARY KEY (tenant, scenario, sequence),
    UNIQUE (tenant, scenario, id),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
) STRICT;
INSERT INTO records_anew (tenant, scenario, sequence, id, kind, created_at_ms, session, call, status, capture,
                          stored_bytes, trace, logprobs, output, prompt, body_bytes, body)
SELECT tenant, scenario, sequence, id, kind, created_at_ms, session, call, status, capture,
       stored_bytes, trace, logprobs, output, prompt, body_bytes, body
FROM records ORDER BY tenant, scenario, sequence;
DROP TABLE records;
ALTER TABLE records_anew RENAME TO records;
CREATE INDEX records_by_time ON records (tenant, scenario, created_at_ms, sequence);
CREATE INDEX records_by_session ON records (tenant, scenario, session, sequence) WHERE session IS NOT NULL;
CREATE INDEX records_to_fill ON records (sequence) WHERE created_at_ms IS NULL;

CREATE TABLE tombstones_anew (
    tenant   TEXT    NOT NULL,
    scenario TEXT    NOT NULL,
    id       TEXT    NOT NULL,
    sequence INTEGER NOT NULL,
    kind     TEXT    NOT NULL CHECK (kind IN ('inference', 'report', 'instruction')),
    cause    TEXT    NOT NULL CHECK (cause IN ('erased', 'dropped')),
    at_ms    INTEGER NOT NULL,
    PRIMARY KEY (tenant, scenario, id),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
) STRICT, WITHOUT ROWID;
INSERT INTO tombstones_anew (tenant, scenario, id, sequence, kind, cause, at_ms)
SELECT tenant, scenario, id, sequence, kind, cause, at_ms FROM tombstones;
DROP TABLE tombstones;
ALTER TABLE tombstones_anew RENAME TO tombstones;
