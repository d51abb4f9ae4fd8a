-- What the planner is to think of the tables, whatever is in them: it has no figures of its own, since nothing here
-- analyses, and without them takes the first two columns of an index, a whole scenario, for as selective as all of them.
-- The numbers are those of one scenario with a million reports: rows, and rows with equal first 1, 2, … columns.
ANALYZE sqlite_schema;
DELETE FROM sqlite_stat1;
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('samples', 'sqlite_autoindex_samples_1', '1000000 1000000 1000000 2 1'),
    ('samples', 'samples_by_state', '1000000 1000000 1000000 500000 100000 1'),
    ('samples', 'samples_by_step', '1000000 1000000 1000000 64'),
    ('sample_records', 'sample_records', '1000000 1000000 1000000 2 1'),
    ('sample_records', 'sample_records_by_record', '1000000 1000000 1000000 2 1'),
    ('records', 'sqlite_autoindex_records_1', '2000000 2000000 2000000 1'),
    ('records', 'sqlite_autoindex_records_2', '2000000 2000000 2000000 1'),
    ('records', 'records_by_time', '2000000 2000000 2000000 2 1'),
    ('records', 'records_by_session', '2000000 2000000 2000000 20 1'),
    ('record_tags', 'record_tags', '2000000 2000000 2000000 2 1'),
    ('record_tags', 'record_tags_by_value', '2000000 2000000 2000000 1000000 1000 1'),
    ('tombstones', 'tombstones', '1000000 1000000 1000000 1');
ANALYZE sqlite_schema;
