-- Surfaces learn side by side: each uses a report once and has a recipe of its own. The router gets a chain too.

ALTER TABLE scenarios ADD COLUMN router_head TEXT;                        -- release id; null: no policy
ALTER TABLE scenarios ADD COLUMN learns TEXT NOT NULL DEFAULT 'weights';  -- surfaces, with commas between

-- A key and constraints cannot be changed in place, so the tables that hold them are written anew. A sample that a step
-- used belongs to the surface of the next step that made a release, or of the last: a scenario had one recipe at a time.
CREATE TABLE samples_anew (
    tenant        TEXT    NOT NULL,
    scenario      TEXT    NOT NULL,
    report        TEXT    NOT NULL,
    surface       TEXT    NOT NULL CHECK (surface IN ('weights', 'harness', 'router')),
    sequence      INTEGER NOT NULL,
    state         TEXT    NOT NULL CHECK (state IN ('pending', 'reserved', 'consumed', 'retired')),
    step          INTEGER,
    reason        TEXT,
    retired_at_ms INTEGER,
    amended_by    TEXT,                        -- a later report
    score         REAL,
    metadata      TEXT    NOT NULL,            -- JSON object
    content       TEXT,                        -- digest of what the report says; null in rows of earlier versions
    PRIMARY KEY (tenant, scenario, report, surface),
    CHECK ((state IN ('reserved', 'consumed')) = (step IS NOT NULL)),
    CHECK ((state = 'retired') = (reason IS NOT NULL)),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
) STRICT;
INSERT INTO samples_anew (tenant, scenario, report, surface, sequence, state, step, reason, retired_at_ms, amended_by,
                          score, metadata, content)
SELECT s.tenant, s.scenario, s.report,
       COALESCE((
           SELECT r.surface FROM releases AS r
           WHERE r.tenant = s.tenant AND r.scenario = s.scenario AND r.step >= s.step ORDER BY r.step LIMIT 1
       ), (
           SELECT r.surface FROM releases AS r
           WHERE r.tenant = s.tenant AND r.scenario = s.scenario AND r.step < s.step ORDER BY r.step DESC LIMIT 1
       ), 'weights'),
       s.sequence, s.state, s.step, s.reason, s.retired_at_ms, s.amended_by, s.score, s.metadata, s.content
FROM samples AS s;
DROP TABLE samples;
ALTER TABLE samples_anew RENAME TO samples;
CREATE INDEX samples_by_state ON samples (tenant, scenario, surface, state, sequence);
CREATE INDEX samples_by_step ON samples (tenant, scenario, step) WHERE step IS NOT NULL;

ALTER TABLE recipe_uses ADD COLUMN surface TEXT NOT NULL DEFAULT 'weights'
    CHECK (surface IN ('weights', 'harness', 'router'));
UPDATE recipe_uses SET surface = 'harness' WHERE 'harness' = (
    SELECT r.surface FROM releases AS r
    WHERE r.tenant = recipe_uses.tenant AND r.scenario = recipe_uses.scenario AND r.step IS NOT NULL
    ORDER BY r.position DESC LIMIT 1);

CREATE TABLE proposals_kept AS SELECT tenant, scenario, id, request, release_id, session, body FROM proposals;
DROP TABLE proposals;
CREATE TABLE releases_anew (
    tenant         TEXT    NOT NULL,
    scenario       TEXT    NOT NULL,
    release_id     TEXT    NOT NULL,
    position       INTEGER NOT NULL,           -- order of arrival
    status         TEXT    NOT NULL CHECK (status IN ('chain', 'held', 'rejected')),
    step           INTEGER,                    -- the step that made it
    surface        TEXT    NOT NULL CHECK (surface IN ('weights', 'harness', 'router')),
    after_sequence INTEGER,                    -- the last record before it became the head; null: it never was
    metrics        TEXT    NOT NULL,           -- JSON
    body_bytes     INTEGER NOT NULL,
    body           BLOB    NOT NULL,           -- JSON, zstd
    PRIMARY KEY (tenant, scenario, release_id),
    UNIQUE (tenant, scenario, position),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
) STRICT;
INSERT INTO releases_anew (tenant, scenario, release_id, position, status, step, surface, after_sequence, metrics,
                           body_bytes, body)
SELECT tenant, scenario, release_id, position, status, step, surface, after_sequence, metrics, body_bytes, body
FROM releases;
DROP TABLE releases;
ALTER TABLE releases_anew RENAME TO releases;
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
INSERT INTO proposals (tenant, scenario, id, request, release_id, session, body)
SELECT tenant, scenario, id, request, release_id, session, body FROM proposals_kept;
DROP TABLE proposals_kept;
