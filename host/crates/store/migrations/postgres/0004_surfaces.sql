-- Surfaces learn side by side: each uses a report once and has a recipe of its own. The router gets a chain too.

ALTER TABLE scenarios ADD COLUMN router_head TEXT;                        -- release id; null: no policy
ALTER TABLE scenarios ADD COLUMN learns TEXT NOT NULL DEFAULT 'weights';  -- surfaces, with commas between

-- A sample that a step used belongs to the surface of the next step that made a release, or of the last: a scenario had
-- one recipe at a time.
ALTER TABLE samples ADD COLUMN surface TEXT NOT NULL DEFAULT 'weights';
UPDATE samples SET surface = COALESCE((
    SELECT r.surface FROM releases AS r
    WHERE r.tenant = samples.tenant AND r.scenario = samples.scenario AND r.step >= samples.step ORDER BY r.step LIMIT 1
), (
    SELECT r.surface FROM releases AS r
    WHERE r.tenant = samples.tenant AND r.scenario = samples.scenario AND r.step < samples.step
    ORDER BY r.step DESC LIMIT 1
), 'weights')
WHERE step IS NOT NULL;
ALTER TABLE samples ADD CONSTRAINT samples_surface_check CHECK (surface IN ('weights', 'harness', 'router'));
ALTER TABLE samples ALTER COLUMN surface DROP DEFAULT;
ALTER TABLE samples DROP CONSTRAINT samples_pkey;
ALTER TABLE samples ADD PRIMARY KEY (tenant, scenario, report, surface);
DROP INDEX samples_by_state;
CREATE INDEX samples_by_state ON samples (tenant, scenario, surface, state, sequence);

ALTER TABLE recipe_uses ADD COLUMN surface TEXT NOT NULL DEFAULT 'weights'
    CHECK (surface IN ('weights', 'harness', 'router'));
UPDATE recipe_uses SET surface = 'harness' WHERE 'harness' = (
    SELECT r.surface FROM releases AS r
    WHERE r.tenant = recipe_uses.tenant AND r.scenario = recipe_uses.scenario AND r.step IS NOT NULL
    ORDER BY r.position DESC LIMIT 1);

ALTER TABLE releases DROP CONSTRAINT releases_surface_check;
ALTER TABLE releases ADD CONSTRAINT releases_surface_check CHECK (surface IN ('weights', 'harness', 'router'));
