-- The durable log of a Reef server. The tenant leads every key and every index, so that no query can
-- reach another tenant's rows by leaving a condition out.

CREATE TABLE scenarios (
    tenant        TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    settings      TEXT    NOT NULL,            -- JSON
    created_at_ms INTEGER NOT NULL,
    head          TEXT,                        -- release id; null before the base release
    last_sequence INTEGER NOT NULL DEFAULT 0,  -- of its records
    inferences    INTEGER NOT NULL DEFAULT 0,
    reports       INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;

-- The body comes last: SQLite walks a row from its start, and the pool reads tokens without bodies.
CREATE TABLE records (
    tenant     TEXT    NOT NULL,
    scenario   TEXT    NOT NULL,
    sequence   INTEGER NOT NULL,
    id         TEXT    NOT NULL,
    kind       TEXT    NOT NULL CHECK (kind IN ('inference', 'report')),
    status     TEXT    CHECK (status IN ('complete', 'cancelled', 'failed')),
    capture    INTEGER CHECK (capture IN (0, 1)),
    trace      TEXT,                           -- JSON: release spans and sampling parameters
    logprobs   BLOB,                           -- f32, little-endian
    output     BLOB,                           -- u32, little-endian
    prompt     BLOB,                           -- u32, little-endian
    body_bytes INTEGER NOT NULL,               -- before compression
    body       BLOB    NOT NULL,               -- JSON, zstd
    PRIMARY KEY (tenant, scenario, sequence),
    UNIQUE (tenant, scenario, id),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
) STRICT;

-- One row per report that references records. Its state is exactly one of four, for ever.
CREATE TABLE samples (
    tenant        TEXT    NOT NULL,
    scenario      TEXT    NOT NULL,
    report        TEXT    NOT NULL,
    sequence      INTEGER NOT NULL,
    state         TEXT    NOT NULL CHECK (state IN ('pending', 'reserved', 'consumed', 'retired')),
    step          INTEGER,
    reason        TEXT,
    retired_at_ms INTEGER,
    amended_by    TEXT,                        -- a later report
    score         REAL,
    metadata      TEXT    NOT NULL,            -- JSON object
    PRIMARY KEY (tenant, scenario, report),
    CHECK ((state IN ('reserved', 'consumed')) = (step IS NOT NULL)),
    CHECK ((state = 'retired') = (reason IS NOT NULL)),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
) STRICT;
CREATE INDEX samples_by_state ON samples (tenant, scenario, state, sequence);
CREATE INDEX samples_by_step ON samples (tenant, scenario, step) WHERE step IS NOT NULL;

CREATE TABLE sample_records (
    tenant   TEXT NOT NULL,
    scenario TEXT NOT NULL,
    report   TEXT NOT NULL,
    record   TEXT NOT NULL,
    PRIMARY KEY (tenant, scenario, report, record)
) STRICT, WITHOUT ROWID;
CREATE INDEX sample_records_by_record ON sample_records (tenant, scenario, record, report);

CREATE TABLE steps (
    tenant     TEXT    NOT NULL,
    scenario   TEXT    NOT NULL,
    step       INTEGER NOT NULL,
    running    INTEGER NOT NULL CHECK (running IN (0, 1)),
    metrics    TEXT    NOT NULL,               -- JSON
    body_bytes INTEGER NOT NULL,
    body       BLOB    NOT NULL,               -- JSON, zstd
    PRIMARY KEY (tenant, scenario, step),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
) STRICT;
CREATE UNIQUE INDEX one_running_step ON steps (tenant, scenario) WHERE running = 1;

CREATE TABLE releases (
    tenant     TEXT    NOT NULL,
    scenario   TEXT    NOT NULL,
    release_id TEXT    NOT NULL,
    position   INTEGER NOT NULL,               -- order of arrival
    status     TEXT    NOT NULL CHECK (status IN ('chain', 'held', 'rejected')),
    step       INTEGER,                        -- the step that made it
    metrics    TEXT    NOT NULL,               -- JSON
    body_bytes INTEGER NOT NULL,
    body       BLOB    NOT NULL,               -- JSON, zstd
    PRIMARY KEY (tenant, scenario, release_id),
    UNIQUE (tenant, scenario, position),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
) STRICT;

CREATE TABLE recipe_state (
    tenant   TEXT NOT NULL,
    scenario TEXT NOT NULL,
    recipe   TEXT NOT NULL,
    key      TEXT NOT NULL,
    value    BLOB NOT NULL,
    PRIMARY KEY (tenant, scenario, recipe, key),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
) STRICT;

CREATE TABLE held_out (
    tenant   TEXT    NOT NULL,
    scenario TEXT    NOT NULL,
    position INTEGER NOT NULL,
    task     TEXT    NOT NULL,                 -- JSON
    PRIMARY KEY (tenant, scenario, position),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
) STRICT;
