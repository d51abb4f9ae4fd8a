-- The same tables as in SQLite. Numbers and flags are 64-bit integers, so that one reader serves both.

-- Two functions of SQLite that the queries use: the elements of a list in JSON text, and the place of a text in another.
-- The first is not STRICT, or the planner could not see into it.
CREATE FUNCTION json_each(list TEXT) RETURNS TABLE (key BIGINT, value TEXT) LANGUAGE SQL IMMUTABLE AS $$
    SELECT t.position - 1, t.element FROM json_array_elements_text(list::JSON) WITH ORDINALITY AS t (element, position)
$$;
CREATE FUNCTION instr(whole TEXT, part TEXT) RETURNS INTEGER LANGUAGE SQL IMMUTABLE STRICT AS $$
    SELECT strpos(whole, part)
$$;

-- The durable log of a Reef server. The tenant leads every key and every index, so that no query can
-- reach another tenant's rows by leaving a condition out.

CREATE TABLE scenarios (
    tenant        TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    settings      TEXT    NOT NULL,            -- JSON
    created_at_ms BIGINT  NOT NULL,
    head          TEXT,                        -- release id; null before the base release
    last_sequence BIGINT  NOT NULL DEFAULT 0,  -- of its records
    inferences    BIGINT  NOT NULL DEFAULT 0,
    reports       BIGINT  NOT NULL DEFAULT 0,  -- inferences and reports count all that ever came
    stored_records BIGINT NOT NULL DEFAULT 0,
    stored_bytes  BIGINT  NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, name)
);


CREATE TABLE records (
    tenant        TEXT    NOT NULL,
    scenario      TEXT    NOT NULL,
    sequence      BIGINT  NOT NULL,
    id            TEXT    NOT NULL,
    kind          TEXT    NOT NULL CHECK (kind IN ('inference', 'report')),
    created_at_ms BIGINT  NOT NULL,
    session       TEXT,                        -- or its digest, where it is long
    call          TEXT,                        -- kind of side call; null: a turn of the conversation
    status        TEXT    CHECK (status IN ('complete', 'cancelled', 'failed')),
    capture       BIGINT  CHECK (capture IN (0, 1)),
    stored_bytes  BIGINT  NOT NULL,            -- of trace, tokens and body
    trace         TEXT,                        -- JSON: release spans and sampling parameters
    logprobs      BYTEA,                        -- f32, little-endian
    output        BYTEA,                        -- u32, little-endian
    prompt        BYTEA,                        -- u32, little-endian
    body_bytes    BIGINT  NOT NULL,            -- before compression
    body          BYTEA NOT NULL,            -- JSON, zstd
    PRIMARY KEY (tenant, scenario, sequence),
    UNIQUE (tenant, scenario, id),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
);
CREATE INDEX records_by_time ON records (tenant, scenario, created_at_ms, sequence);
CREATE INDEX records_by_session ON records (tenant, scenario, session, sequence) WHERE session IS NOT NULL;
-- Bodies are compressed already; token columns are read as a whole.
ALTER TABLE records ALTER body SET STORAGE EXTERNAL;

CREATE TABLE record_tags (
    tenant   TEXT    NOT NULL,
    scenario TEXT    NOT NULL,
    tag      TEXT    NOT NULL,
    value    TEXT    NOT NULL,                 -- or its digest, where it is long
    sequence BIGINT  NOT NULL,
    PRIMARY KEY (tenant, scenario, sequence, tag)
);
CREATE INDEX record_tags_by_value ON record_tags (tenant, scenario, tag, value, sequence);

-- What is left of a record that was erased or dropped: enough for the samples and steps that name it.
CREATE TABLE tombstones (
    tenant   TEXT    NOT NULL,
    scenario TEXT    NOT NULL,
    id       TEXT    NOT NULL,
    sequence BIGINT  NOT NULL,
    kind     TEXT    NOT NULL CHECK (kind IN ('inference', 'report')),
    cause    TEXT    NOT NULL CHECK (cause IN ('erased', 'dropped')),
    at_ms    BIGINT  NOT NULL,
    PRIMARY KEY (tenant, scenario, id),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
);

-- Reports that were taken back.
CREATE TABLE retractions (
    tenant   TEXT    NOT NULL,
    scenario TEXT    NOT NULL,
    report   TEXT    NOT NULL,
    at_ms    BIGINT  NOT NULL,
    PRIMARY KEY (tenant, scenario, report),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
);

-- One row while bytes of erased records may still lie in the file.
CREATE TABLE unscrubbed (
    one BIGINT  NOT NULL PRIMARY KEY CHECK (one = 1)
);

-- One row per report that references records. Its state is exactly one of four, for ever.
CREATE TABLE samples (
    tenant        TEXT    NOT NULL,
    scenario      TEXT    NOT NULL,
    report        TEXT    NOT NULL,
    sequence      BIGINT  NOT NULL,
    state         TEXT    NOT NULL CHECK (state IN ('pending', 'reserved', 'consumed', 'retired')),
    step          BIGINT,
    reason        TEXT,
    retired_at_ms BIGINT,
    amended_by    TEXT,                        -- a later report
    score         DOUBLE PRECISION,
    metadata      TEXT    NOT NULL,            -- JSON object
    content       TEXT,                        -- digest of what the report says; null: erased
    PRIMARY KEY (tenant, scenario, report),
    CHECK ((state IN ('reserved', 'consumed')) = (step IS NOT NULL)),
    CHECK ((state = 'retired') = (reason IS NOT NULL)),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
);
CREATE INDEX samples_by_state ON samples (tenant, scenario, state, sequence);
CREATE INDEX samples_by_step ON samples (tenant, scenario, step) WHERE step IS NOT NULL;

CREATE TABLE sample_records (
    tenant   TEXT NOT NULL,
    scenario TEXT NOT NULL,
    report   TEXT NOT NULL,
    record   TEXT NOT NULL,
    PRIMARY KEY (tenant, scenario, report, record)
);
CREATE INDEX sample_records_by_record ON sample_records (tenant, scenario, record, report);

CREATE TABLE steps (
    tenant     TEXT    NOT NULL,
    scenario   TEXT    NOT NULL,
    step       BIGINT  NOT NULL,
    running    BIGINT  NOT NULL CHECK (running IN (0, 1)),
    metrics    TEXT    NOT NULL,               -- JSON
    body_bytes BIGINT  NOT NULL,
    body       BYTEA NOT NULL,               -- JSON, zstd
    PRIMARY KEY (tenant, scenario, step),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
);
CREATE UNIQUE INDEX one_running_step ON steps (tenant, scenario) WHERE running = 1;

CREATE TABLE releases (
    tenant     TEXT    NOT NULL,
    scenario   TEXT    NOT NULL,
    release_id TEXT    NOT NULL,
    position   BIGINT  NOT NULL,               -- order of arrival
    status     TEXT    NOT NULL CHECK (status IN ('chain', 'held', 'rejected')),
    step       BIGINT,                        -- the step that made it
    metrics    TEXT    NOT NULL,               -- JSON
    body_bytes BIGINT  NOT NULL,
    body       BYTEA NOT NULL,               -- JSON, zstd
    after_sequence BIGINT,                      -- the last record before it became the head; null: it never was
    PRIMARY KEY (tenant, scenario, release_id),
    UNIQUE (tenant, scenario, position),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
);

CREATE TABLE recipe_state (
    tenant   TEXT NOT NULL,
    scenario TEXT NOT NULL,
    recipe   TEXT NOT NULL,
    key      TEXT NOT NULL,
    value    BYTEA NOT NULL,
    PRIMARY KEY (tenant, scenario, recipe, key),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
);

CREATE TABLE held_out (
    tenant   TEXT    NOT NULL,
    scenario TEXT    NOT NULL,
    position BIGINT  NOT NULL,
    task     TEXT    NOT NULL,                 -- JSON
    PRIMARY KEY (tenant, scenario, position),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
);

-- What it takes to do a step again: its inputs, what it heard from models, the component that ran, and when each
-- release began to serve. Also what a recipe is known for, so that a restart does not forgive it.

-- Written with the step that it belongs to: the inputs when the step begins, the transcript when it ends.
CREATE TABLE step_inputs (
    tenant           TEXT    NOT NULL,
    scenario         TEXT    NOT NULL,
    step             BIGINT  NOT NULL,
    inputs_bytes     BIGINT  NOT NULL,         -- before compression
    inputs           BYTEA NOT NULL,         -- JSON, zstd
    transcript_bytes BIGINT,                  -- before compression
    transcript       BYTEA,                     -- JSON, zstd; null while the step runs
    PRIMARY KEY (tenant, scenario, step),
    CHECK ((transcript IS NULL) = (transcript_bytes IS NULL)),
    FOREIGN KEY (tenant, scenario, step) REFERENCES steps (tenant, scenario, step)
);

-- Components that this server has loaded. Their bytes lie in the data folder under their digest and belong to no
-- tenant: equal components are one.
CREATE TABLE recipes (
    digest          TEXT    NOT NULL PRIMARY KEY, -- SHA-256 of the component
    name            TEXT    NOT NULL,
    version         TEXT    NOT NULL,
    generation      TEXT    NOT NULL,          -- of the interface
    bytes           BIGINT  NOT NULL,
    first_loaded_ms BIGINT  NOT NULL
);

CREATE TABLE quarantine (
    tenant   TEXT NOT NULL,
    scenario TEXT NOT NULL,
    recipe   TEXT NOT NULL,                    -- name, version and digest
    record   TEXT NOT NULL,                    -- JSON
    PRIMARY KEY (tenant, scenario, recipe),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
);


-- Which recipe a scenario uses from when on. A row keeps the state of the recipe that it replaced, so that
-- going back restores code and state together.
CREATE TABLE recipe_uses (
    tenant              TEXT    NOT NULL,
    scenario            TEXT    NOT NULL,
    position            BIGINT  NOT NULL,      -- from 1
    digest              TEXT    NOT NULL,      -- SHA-256 of the component
    name                TEXT    NOT NULL,
    version             TEXT    NOT NULL,
    reason              TEXT    NOT NULL CHECK (reason IN ('start', 'upload', 'rollback', 'fallback')),
    note                TEXT    NOT NULL,
    at_ms               BIGINT  NOT NULL,
    replaced_name       TEXT    NOT NULL,
    replaced_bytes      BIGINT  NOT NULL,      -- before compression
    replaced_state      BYTEA NOT NULL,      -- JSON, zstd
    PRIMARY KEY (tenant, scenario, position),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
);
