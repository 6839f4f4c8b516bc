-- Settings of schedules for PostgreSQL only: the collation of keys, and autovacuum. See 0005_engine.postgres.sql.
ALTER TABLE schedules
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN schedule_id TYPE TEXT COLLATE "C",
    ALTER COLUMN status TYPE TEXT COLLATE "C";

ALTER TABLE schedules SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
