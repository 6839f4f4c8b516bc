-- Runs: job graphs, their jobs, and which job needs which (see docs/runs.md).

-- Runs. One without a status is known by name only, because a command on it came before the one that starts it; one that
-- is cancelled and has no digest is the tombstone of such a cancel.
CREATE TABLE runs (
    tenant_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    status TEXT,
    digest TEXT,
    open_jobs INTEGER NOT NULL DEFAULT 0 CHECK (open_jobs >= 0),
    failed_jobs INTEGER NOT NULL DEFAULT 0 CHECK (failed_jobs >= 0),
    open_groups INTEGER NOT NULL DEFAULT 0 CHECK (open_groups >= 0),
    pending_bytes BIGINT NOT NULL DEFAULT 0 CHECK (pending_bytes >= 0),
    has_outputs INTEGER NOT NULL DEFAULT 0 CHECK (has_outputs IN (0, 1)),
    evaluated INTEGER NOT NULL DEFAULT 1 CHECK (evaluated IN (0, 1)),
    flaw_code TEXT,
    flaw_path TEXT,
    created_at BIGINT NOT NULL,
    settled_at BIGINT,
    sweep_at BIGINT,
    position_epoch BIGINT NOT NULL,
    position_sequence BIGINT NOT NULL,
    since_epoch BIGINT NOT NULL DEFAULT 0,
    since_sequence BIGINT NOT NULL DEFAULT 0,
    correlation_id TEXT,
    causation_id TEXT,
    traceparent TEXT,
    tracestate TEXT,
    PRIMARY KEY (tenant_id, run_id),
    CHECK (CASE status
        WHEN 'running' THEN digest IS NOT NULL AND settled_at IS NULL AND flaw_code IS NULL
        WHEN 'success' THEN digest IS NOT NULL AND settled_at IS NOT NULL AND flaw_code IS NULL AND failed_jobs = 0
        WHEN 'failed' THEN digest IS NOT NULL AND settled_at IS NOT NULL AND flaw_code IS NULL
        WHEN 'cancelled' THEN settled_at IS NOT NULL AND flaw_code IS NULL
        WHEN 'rejected' THEN digest IS NOT NULL AND settled_at IS NOT NULL AND flaw_code IS NOT NULL
        ELSE status IS NULL AND digest IS NULL AND settled_at IS NOT NULL AND flaw_code IS NULL
    END),
    -- Exactly the runs that go on are swept, the others are deleted one day.
    CHECK ((settled_at IS NULL) = (sweep_at IS NOT NULL)),
    CHECK (settled_at IS NULL OR (open_jobs = 0 AND open_groups = 0))
);

-- The sweep, those first that have waited longest.
CREATE INDEX runs_to_sweep ON runs (sweep_at) WHERE sweep_at IS NOT NULL;

-- Lists, newest first: of a status, and of all.
CREATE INDEX runs_by_status ON runs (tenant_id, status, created_at, run_id) WHERE digest IS NOT NULL;
CREATE INDEX runs_by_age ON runs (tenant_id, created_at, run_id) WHERE digest IS NOT NULL;

-- Retention.
CREATE INDEX runs_settled ON runs (settled_at) WHERE settled_at IS NOT NULL;

-- Jobs. `ready_at` is when the needs of one were satisfied and its JobReady went into the outbox; what is reported of it
-- comes after that. `open_needs` counts the jobs it needs that have not ended, `open_groups` the groups not yet resolved.
CREATE TABLE run_jobs (
    tenant_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    job_name TEXT NOT NULL,
    status TEXT NOT NULL,
    group_name TEXT,
    payload TEXT,
    payload_bytes INTEGER NOT NULL,
    outputs TEXT,
    outputs_bytes INTEGER,
    reason TEXT,
    open_needs INTEGER NOT NULL CHECK (open_needs >= 0),
    open_groups INTEGER NOT NULL CHECK (open_groups >= 0),
    ready_at BIGINT,
    settled_at BIGINT,
    stale_after_ms BIGINT CHECK (stale_after_ms > 0),
    stale_at BIGINT,
    position_epoch BIGINT NOT NULL,
    position_sequence BIGINT NOT NULL,
    PRIMARY KEY (tenant_id, run_id, job_name),
    CHECK ((payload IS NULL) = (payload_bytes = 0)),
    CHECK ((outputs IS NULL) = (outputs_bytes IS NULL)),
    -- The gate: nothing is done before everything it needs is.
    CHECK (CASE status
        WHEN 'pending' THEN settled_at IS NULL
        WHEN 'dispatched' THEN settled_at IS NULL AND ready_at IS NOT NULL
        WHEN 'running' THEN settled_at IS NULL AND ready_at IS NOT NULL
        WHEN 'success' THEN settled_at IS NOT NULL AND ready_at IS NOT NULL
        WHEN 'failed' THEN settled_at IS NOT NULL
        WHEN 'cancelled' THEN settled_at IS NOT NULL
        WHEN 'skipped' THEN settled_at IS NOT NULL
        WHEN 'timed_out_stale' THEN settled_at IS NOT NULL
        WHEN 'drift_dropped' THEN settled_at IS NOT NULL
        ELSE FALSE
    END),
    CHECK (ready_at IS NULL OR (open_needs = 0 AND open_groups = 0)),
    CHECK (stale_at IS NULL OR (ready_at IS NOT NULL AND settled_at IS NULL))
);

-- The gauge of jobs that wait.
CREATE INDEX run_jobs_waiting ON run_jobs (tenant_id, run_id, job_name)
    WHERE ready_at IS NULL AND settled_at IS NULL;

-- The sweep: jobs that nothing has been heard of.
CREATE INDEX run_jobs_stale ON run_jobs (stale_at) WHERE stale_at IS NOT NULL;

-- Who needs whom. The key answers what a job needs, the index who needs it: it begins and goes on with other columns, so that
-- a planner without statistics can't take the one for the other.
CREATE TABLE run_needs (
    tenant_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    job_name TEXT NOT NULL,
    upstream_name TEXT NOT NULL,
    if_failed TEXT NOT NULL CHECK (if_failed IN ('skip', 'run')),
    PRIMARY KEY (tenant_id, run_id, job_name, upstream_name),
    CHECK (job_name <> upstream_name)
);
CREATE INDEX run_needs_downstream ON run_needs (upstream_name, tenant_id, run_id, if_failed, job_name);

-- Dynamic groups, whose jobs are named later.
CREATE TABLE run_groups (
    tenant_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    group_name TEXT NOT NULL,
    digest TEXT,
    resolved_at BIGINT,
    PRIMARY KEY (tenant_id, run_id, group_name),
    CHECK ((digest IS NULL) = (resolved_at IS NULL))
);

-- Who needs a group. Once it is resolved, its jobs stand in run_needs.
CREATE TABLE run_group_needs (
    tenant_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    job_name TEXT NOT NULL,
    group_name TEXT NOT NULL,
    if_failed TEXT NOT NULL CHECK (if_failed IN ('skip', 'run')),
    PRIMARY KEY (tenant_id, run_id, job_name, group_name)
);

-- Commands that were delivered before the one that makes their run or their job known.
CREATE TABLE run_pending_commands (
    tenant_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    position_epoch BIGINT NOT NULL,
    position_sequence BIGINT NOT NULL,
    command_id TEXT NOT NULL,
    command_type TEXT NOT NULL,
    payload TEXT NOT NULL,
    correlation_id TEXT,
    traceparent TEXT,
    tracestate TEXT,
    PRIMARY KEY (tenant_id, run_id, position_epoch, position_sequence)
);
