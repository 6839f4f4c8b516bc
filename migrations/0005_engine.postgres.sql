-- Settings for PostgreSQL only: the collation of keys, and autovacuum.

-- Keys compare by their bytes, as in SQLite and in Python. So lists have the same order everywhere, and a new version of the
-- system's collations cannot break an index.
ALTER TABLE timer_schedules
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN service_call_id TYPE TEXT COLLATE "C";

-- A timer is written three times, and each write leaves a dead row. So vacuum runs early and in small steps. The fillfactor leaves
-- room for the next version of a row on the same page.
ALTER TABLE timer_schedules SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE outbox
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN event_id TYPE TEXT COLLATE "C";
ALTER TABLE dead_letters
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN letter_id TYPE TEXT COLLATE "C";
ALTER TABLE work_items
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN work_item_id TYPE TEXT COLLATE "C";
ALTER TABLE work_item_events
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN work_item_id TYPE TEXT COLLATE "C",
    ALTER COLUMN event_id TYPE TEXT COLLATE "C";
ALTER TABLE work_signals
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN signal_id TYPE TEXT COLLATE "C",
    ALTER COLUMN work_item_id TYPE TEXT COLLATE "C",
    ALTER COLUMN status TYPE TEXT COLLATE "C";
ALTER TABLE work_signal_firings
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN firing_id TYPE TEXT COLLATE "C",
    ALTER COLUMN signal_id TYPE TEXT COLLATE "C",
    ALTER COLUMN work_item_id TYPE TEXT COLLATE "C",
    ALTER COLUMN dedupe_key TYPE TEXT COLLATE "C";

ALTER TABLE outbox SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE dead_letters SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE work_signal_firings SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE runs
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN run_id TYPE TEXT COLLATE "C",
    ALTER COLUMN status TYPE TEXT COLLATE "C";
ALTER TABLE run_jobs
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN run_id TYPE TEXT COLLATE "C",
    ALTER COLUMN job_name TYPE TEXT COLLATE "C";
ALTER TABLE run_needs
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN run_id TYPE TEXT COLLATE "C",
    ALTER COLUMN job_name TYPE TEXT COLLATE "C",
    ALTER COLUMN upstream_name TYPE TEXT COLLATE "C",
    ALTER COLUMN if_failed TYPE TEXT COLLATE "C";
ALTER TABLE run_groups
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN run_id TYPE TEXT COLLATE "C",
    ALTER COLUMN group_name TYPE TEXT COLLATE "C";
ALTER TABLE run_group_needs
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN run_id TYPE TEXT COLLATE "C",
    ALTER COLUMN job_name TYPE TEXT COLLATE "C",
    ALTER COLUMN group_name TYPE TEXT COLLATE "C";
ALTER TABLE run_pending_commands
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN run_id TYPE TEXT COLLATE "C";

ALTER TABLE runs SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE run_jobs SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
