-- What only PostgreSQL wants to be told about timers.

-- Keys compare by their bytes, as in SQLite and in Python: lists come in the same order everywhere, and a new version of the
-- system's collations can't break an index.
ALTER TABLE timer_schedules
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN service_call_id TYPE TEXT COLLATE "C";

-- A timer is written three times in its life, so dead rows keep coming: clean up early and in small steps, and leave room for
-- a row's next version on its own page.
ALTER TABLE timer_schedules SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
