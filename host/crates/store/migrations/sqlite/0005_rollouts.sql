-- Pins, canaries and shadows. A row is written when one begins and once more when it ends.
CREATE TABLE rollouts (
    tenant   TEXT    NOT NULL,
    scenario TEXT    NOT NULL,
    number   INTEGER NOT NULL,                 -- from 1
    running  INTEGER NOT NULL CHECK (running IN (0, 1)),
    body     TEXT    NOT NULL,                 -- JSON
    PRIMARY KEY (tenant, scenario, number),
    FOREIGN KEY (tenant, scenario) REFERENCES scenarios (tenant, name)
) STRICT;
CREATE UNIQUE INDEX one_running_rollout ON rollouts (tenant, scenario) WHERE running = 1;
