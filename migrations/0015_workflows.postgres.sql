-- Settings of workflows for PostgreSQL only: the collation of keys, and autovacuum. See 0005_engine.postgres.sql.
ALTER TABLE workflows
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN workflow_id TYPE TEXT COLLATE "C",
    ALTER COLUMN type TYPE TEXT COLLATE "C",
    ALTER COLUMN queue TYPE TEXT COLLATE "C",
    ALTER COLUMN status TYPE TEXT COLLATE "C",
    ALTER COLUMN concurrency_key TYPE TEXT COLLATE "C";
ALTER TABLE workflow_data
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN workflow_id TYPE TEXT COLLATE "C";
ALTER TABLE workflow_effects
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN workflow_id TYPE TEXT COLLATE "C",
    ALTER COLUMN name TYPE TEXT COLLATE "C";
ALTER TABLE workflow_messages
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN workflow_id TYPE TEXT COLLATE "C",
    ALTER COLUMN name TYPE TEXT COLLATE "C",
    ALTER COLUMN message_id TYPE TEXT COLLATE "C";
ALTER TABLE workflow_workers
    ALTER COLUMN tenant_id TYPE TEXT COLLATE "C",
    ALTER COLUMN worker_id TYPE TEXT COLLATE "C",
    ALTER COLUMN queue TYPE TEXT COLLATE "C";

ALTER TABLE workflows SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE workflow_effects SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
