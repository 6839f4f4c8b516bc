-- What only PostgreSQL wants to be told about needs (see 0002_timers.postgres.sql).
ALTER TABLE execution_runs
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN run_id TYPE TEXT COLLATE "C",
    ALTER COLUMN status TYPE TEXT COLLATE "C";
ALTER TABLE execution_jobs
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN run_id TYPE TEXT COLLATE "C",
    ALTER COLUMN job_name TYPE TEXT COLLATE "C";
ALTER TABLE execution_job_needs
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN run_id TYPE TEXT COLLATE "C",
    ALTER COLUMN job_name TYPE TEXT COLLATE "C",
    ALTER COLUMN upstream_name TYPE TEXT COLLATE "C",
    ALTER COLUMN if_failed TYPE TEXT COLLATE "C";
ALTER TABLE execution_groups
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN run_id TYPE TEXT COLLATE "C",
    ALTER COLUMN group_name TYPE TEXT COLLATE "C";
ALTER TABLE execution_group_needs
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN run_id TYPE TEXT COLLATE "C",
    ALTER COLUMN job_name TYPE TEXT COLLATE "C",
    ALTER COLUMN group_name TYPE TEXT COLLATE "C";
ALTER TABLE execution_early_commands
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN run_id TYPE TEXT COLLATE "C";

ALTER TABLE execution_runs SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE execution_jobs SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
