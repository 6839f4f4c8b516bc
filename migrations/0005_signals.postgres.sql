-- What only PostgreSQL wants to be told about the outbox and work signals (see 0002_timers.postgres.sql).
ALTER TABLE outbox
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN event_id TYPE TEXT COLLATE "C";
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
    ALTER COLUMN dedupe_key TYPE TEXT COLLATE "C";
ALTER TABLE work_item_tasks
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN task_id TYPE TEXT COLLATE "C",
    ALTER COLUMN work_item_id TYPE TEXT COLLATE "C",
    ALTER COLUMN signal_id TYPE TEXT COLLATE "C";

ALTER TABLE outbox SET (
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
