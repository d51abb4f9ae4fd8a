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
);
CREATE INDEX proposals_by_request ON proposals (tenant, scenario, request) WHERE request IS NOT NULL;

-- Records have a third kind.
ALTER TABLE records DROP CONSTRAINT records_kind_check;
ALTER TABLE records ADD CONSTRAINT records_kind_check CHECK (kind IN ('inference', 'report', 'instruction'));
ALTER TABLE tombstones DROP CONSTRAINT tombstones_kind_check;
ALTER TABLE tombstones ADD CONSTRAINT tombstones_kind_check CHECK (kind IN ('inference', 'report', 'instruction'));
