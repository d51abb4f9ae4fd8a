-- What finds, counts, takes back and erases records. Rows of earlier versions get the time, the session, the kind of
-- call and the tags from their bodies when the store opens: until then their created_at_ms is null.

-- The table is written anew, because SQLite walks a row from its start: the body stays last.
CREATE TABLE records_anew (
    tenant        TEXT    NOT NULL,
    scenario      TEXT    NOT NULL,
    sequence      INTEGER NOT NULL,
    id            TEXT    NOT NULL,
    kind          TEXT    NOT NULL CHECK (kind IN ('inference', 'report')),
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
INSERT INTO records_anew (tenant, scenario, sequence, id, kind, status, capture, stored_bytes, trace, logprobs, output,
                          prompt, body_bytes, body)
SELECT tenant, scenario, sequence, id, kind, status, capture,
       LENGTH(body) + COALESCE(LENGTH(trace) + LENGTH(logprobs) + LENGTH(output) + LENGTH(prompt), 0),
       trace, logprobs, output, prompt, body_bytes, body
FROM records ORDER BY tenant, scenario, sequence;
DROP TABLE records;
ALTER TABLE records_anew RENAME TO records;
CREATE INDEX records_by_time ON records (tenant, scenario, created_at_ms, sequence);
CREATE INDEX records_by_session ON records (tenant, scenario, session, sequence) WHERE session IS NOT NULL;
CREATE INDEX records_to_fill ON records (sequence) WHERE created_at_ms IS NULL;

CREATE TABLE record_tags (
    tenant   TEXT    NOT NULL,
    scenario TEXT    NOT NULL,
    tag      TEXT    NOT NULL,
    value    TEXT    NOT NULL,                 -- or its digest, where it is long
    sequence INTEGER NOT NULL,
    PRIMARY KEY (tenant, scenario, sequence, tag)
) STRICT, WITHOUT ROWID;
CREATE INDEX record_tags_by_value ON record_tags (tenant, scenario, tag, value, sequence);

-- What is left of a record that was erased or dropped: enough for the samples and steps that name it.
CREATE TABLE tombstones (
    tenant   TEXT    NOT NULL,
    scenario TEXT    NOT NULL,
    id       TEXT    NOT NULL,
    sequence INTEGER NOT NULL,
    kind     TEXT    NOT NULL CHECK (kind IN ('inference', 'report')),
    cause    TEXT    NOT NULL CHECK (cause IN ('erased', 'dropped')),
    at_ms    INTEGER NOT NULL,
    PRIMARY KEY (tenant, scenario, id),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
) STRICT, WITHOUT ROWID;

-- Reports that were taken back.
CREATE TABLE retractions (
    tenant   TEXT    NOT NULL,
    scenario TEXT    NOT NULL,
    report   TEXT    NOT NULL,
    at_ms    INTEGER NOT NULL,
    PRIMARY KEY (tenant, scenario, report),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
) STRICT, WITHOUT ROWID;

ALTER TABLE samples ADD COLUMN content TEXT;   -- digest of what the report says; null in rows of earlier versions

-- What is stored now, while inferences and reports count all that ever came.
ALTER TABLE scenarios ADD COLUMN stored_records INTEGER NOT NULL DEFAULT 0;
ALTER TABLE scenarios ADD COLUMN stored_bytes INTEGER NOT NULL DEFAULT 0;
UPDATE scenarios SET (stored_records, stored_bytes) = (
    SELECT COUNT(*), COALESCE(SUM(r.stored_bytes), 0) FROM records AS r
    WHERE r.tenant = scenarios.tenant AND r.scenario = scenarios.name
);

-- One row while bytes of erased records may still lie in the file.
CREATE TABLE unscrubbed (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1)
) STRICT;
