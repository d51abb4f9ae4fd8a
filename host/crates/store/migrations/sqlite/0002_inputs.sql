-- What it takes to do a step again: its inputs, what it heard from models, the component that ran, and when each
-- release began to serve. Also what a recipe is known for, so that a restart does not forgive it.

-- Written with the step that it belongs to: the inputs when the step begins, the transcript when it ends.
CREATE TABLE step_inputs (
    tenant           TEXT    NOT NULL,
    scenario         TEXT    NOT NULL,
    step             INTEGER NOT NULL,
    inputs_bytes     INTEGER NOT NULL,         -- before compression
    inputs           BLOB    NOT NULL,         -- JSON, zstd
    transcript_bytes INTEGER,                  -- before compression
    transcript       BLOB,                     -- JSON, zstd; null while the step runs
    PRIMARY KEY (tenant, scenario, step),
    CHECK ((transcript IS NULL) = (transcript_bytes IS NULL)),
    FOREIGN KEY (tenant, scenario, step) REFERENCES steps (tenant, scenario, step)
) STRICT;

-- Components that this server has loaded. Their bytes lie in the data folder under their digest and belong to no
-- tenant: equal components are one.
CREATE TABLE recipes (
    digest          TEXT    NOT NULL PRIMARY KEY, -- SHA-256 of the component
    name            TEXT    NOT NULL,
    version         TEXT    NOT NULL,
    generation      TEXT    NOT NULL,          -- of the interface
    bytes           INTEGER NOT NULL,
    first_loaded_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE quarantine (
    tenant   TEXT NOT NULL,
    scenario TEXT NOT NULL,
    recipe   TEXT NOT NULL,                    -- name, version and digest
    record   TEXT NOT NULL,                    -- JSON
    PRIMARY KEY (tenant, scenario, recipe),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
) STRICT;

-- The last record before the release became the head; null: it never was. A release that is older than this column
-- counts from the first answer that it sampled.
ALTER TABLE releases ADD COLUMN after_sequence INTEGER;
UPDATE releases SET after_sequence = first.sequence - 1
FROM (
    SELECT tenant, scenario, trace ->> '$.spans[0].release' AS release, MIN(sequence) AS sequence
    FROM records WHERE trace IS NOT NULL GROUP BY 1, 2, 3
) AS first
WHERE first.tenant = releases.tenant AND first.scenario = releases.scenario AND first.release = releases.release_id
  AND releases.status = 'chain';
