-- Changes of the harness that were not admitted, with the rules that they break; the newest of a scenario.
CREATE TABLE refused_proposals (
    tenant        TEXT    NOT NULL,
    scenario      TEXT    NOT NULL,
    id            TEXT    NOT NULL,            -- digest of what was proposed
    session       TEXT,                        -- that it was learned from
    created_at_ms BIGINT  NOT NULL,
    body          TEXT    NOT NULL,            -- JSON
    PRIMARY KEY (tenant, scenario, id),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
);
CREATE INDEX refused_proposals_by_time ON refused_proposals (tenant, scenario, created_at_ms, id);
