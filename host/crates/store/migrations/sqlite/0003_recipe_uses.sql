-- Which recipe a scenario uses from when on. A row keeps the state of the recipe that it replaced, so that
-- going back restores code and state together.
CREATE TABLE recipe_uses (
    tenant              TEXT    NOT NULL,
    scenario            TEXT    NOT NULL,
    position            INTEGER NOT NULL,      -- from 1
    digest              TEXT    NOT NULL,      -- SHA-256 of the component
    name                TEXT    NOT NULL,
    version             TEXT    NOT NULL,
    reason              TEXT    NOT NULL CHECK (reason IN ('start', 'upload', 'rollback', 'fallback')),
    note                TEXT    NOT NULL,
    at_ms               INTEGER NOT NULL,
    replaced_name       TEXT    NOT NULL,
    replaced_bytes      INTEGER NOT NULL,      -- before compression
    replaced_state      BLOB    NOT NULL,      -- JSON, zstd
    PRIMARY KEY (tenant, scenario, position),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
) STRICT;
