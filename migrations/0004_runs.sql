-- Runs: graphs of jobs, which the users' workers execute. See docs/runs.md.

-- Runs. A row is one run. A run without a status is not started: it holds commands that come before its StartRun in the log.
CREATE TABLE runs (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    run_id TEXT COLLATE BINARY NOT NULL,
    status TEXT COLLATE BINARY,
    digest TEXT,
    attempt INTEGER NOT NULL DEFAULT 1 CHECK (attempt > 0),  -- 1, and one more for each RetryRun
    open_jobs INTEGER NOT NULL DEFAULT 0 CHECK (open_jobs >= 0),
    failed_jobs INTEGER NOT NULL DEFAULT 0 CHECK (failed_jobs >= 0),
    open_groups INTEGER NOT NULL DEFAULT 0 CHECK (open_groups >= 0),
    stored_bytes INTEGER NOT NULL DEFAULT 0 CHECK (stored_bytes >= 0),
    payload_bytes INTEGER NOT NULL DEFAULT 0 CHECK (payload_bytes >= 0),
    pending_bytes BIGINT NOT NULL DEFAULT 0 CHECK (pending_bytes >= 0),
    row_count INTEGER NOT NULL DEFAULT 0 CHECK (row_count >= 0),  -- of jobs, edges, groups and needs of groups
    has_outputs INTEGER NOT NULL DEFAULT 0 CHECK (has_outputs IN (0, 1)),
    evaluated INTEGER NOT NULL DEFAULT 1 CHECK (evaluated IN (0, 1)),
    flaw_code TEXT,
    flaw_path TEXT,
    created_at BIGINT NOT NULL,
    settled_at BIGINT,
    sweep_at BIGINT,
    position_epoch BIGINT NOT NULL,
    position_sequence BIGINT NOT NULL,
    correlation_id TEXT,
    causation_id TEXT,
    traceparent TEXT,
    tracestate TEXT,
    PRIMARY KEY (tenant_id, run_id),
    CHECK (CASE status
        WHEN 'running' THEN digest IS NOT NULL AND settled_at IS NULL AND flaw_code IS NULL
        WHEN 'cancelling' THEN digest IS NOT NULL AND settled_at IS NULL AND open_jobs > 0 AND open_groups = 0
        WHEN 'success' THEN digest IS NOT NULL AND settled_at IS NOT NULL AND flaw_code IS NULL AND failed_jobs = 0
        WHEN 'failed' THEN digest IS NOT NULL AND settled_at IS NOT NULL AND flaw_code IS NULL
        WHEN 'cancelled' THEN digest IS NOT NULL AND settled_at IS NOT NULL AND flaw_code IS NULL
        WHEN 'rejected' THEN digest IS NOT NULL AND settled_at IS NOT NULL AND flaw_code IS NOT NULL
        ELSE status IS NULL AND digest IS NULL AND settled_at IS NOT NULL AND flaw_code IS NULL
    END),
    -- The sweep looks at a run until it is settled. Retention deletes settled runs.
    CHECK ((settled_at IS NULL) = (sweep_at IS NOT NULL)),
    CHECK (settled_at IS NULL OR (open_jobs = 0 AND open_groups = 0))
) /* postgres: WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0) */;

-- Used by `due_runs` and `next_sweep`, which find the runs that are due for the sweep, and by the gauge that counts running runs.
CREATE INDEX runs_to_sweep ON runs (sweep_at) WHERE sweep_at IS NOT NULL;

-- Used by `page`, newest first: one index for the runs of a status, one for all runs that have ended.
CREATE INDEX runs_by_status ON runs (tenant_id, status, created_at, run_id) WHERE digest IS NOT NULL;
CREATE INDEX runs_by_age ON runs (tenant_id, created_at, run_id) WHERE digest IS NOT NULL AND settled_at IS NOT NULL;

-- Used by `settled_runs`, which finds the runs that retention deletes.
CREATE INDEX runs_settled ON runs (settled_at) WHERE settled_at IS NOT NULL;

-- Used by `sum_pending`.
CREATE INDEX runs_with_pending ON runs (tenant_id, pending_bytes) WHERE pending_bytes > 0;

-- Jobs. A row is one job of a run. `ready_at` is the time when its needs were satisfied and its JobReady was added to the outbox.
-- Reports of its status come after that. `open_needs` counts the upstream jobs that have not ended. `open_groups` counts the groups
-- that it needs and that are not resolved.
CREATE TABLE run_jobs (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    run_id TEXT COLLATE BINARY NOT NULL,
    job_name TEXT COLLATE BINARY NOT NULL,
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
    always INTEGER NOT NULL DEFAULT 0 CHECK (always IN (0, 1)),
    attempt INTEGER NOT NULL DEFAULT 1 CHECK (attempt > 0),  -- the attempt of the run in which it began
    PRIMARY KEY (tenant_id, run_id, job_name),
    CHECK ((payload IS NULL) = (payload_bytes = 0)),
    CHECK ((outputs IS NULL) = (outputs_bytes IS NULL)),
    -- A job cannot run before it is ready, and it is ready only when nothing that it needs is open.
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
) /* postgres: WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0) */;

-- Used by the gauge that counts jobs that are not ready.
CREATE INDEX run_jobs_waiting ON run_jobs (tenant_id, run_id, job_name)
    WHERE ready_at IS NULL AND settled_at IS NULL;

-- Used by `stale_jobs` and `next_stale`, which find the ready jobs that nobody has reported on in time.
CREATE INDEX run_jobs_stale ON run_jobs (stale_at) WHERE stale_at IS NOT NULL;

-- Used by `stale_tenants` and `stale_jobs_of_tenant`: tenants take turns, so the many stale jobs of one delay no other.
CREATE INDEX run_jobs_stale_of_tenant ON run_jobs (tenant_id, stale_at) WHERE stale_at > 0;

-- Edges. A row has the edges of one job of a run, as JSON: the names of jobs by what a failure means. A job without edges has no row.
-- There is not a row for each edge: a StartRun may have 100,000 needs, and its transaction must be short.
-- {"skip": ["lint", "test"], "run": ["deploy"]}
CREATE TABLE run_edges (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    run_id TEXT COLLATE BINARY NOT NULL,
    job_name TEXT COLLATE BINARY NOT NULL,
    needs TEXT,  -- the jobs that it needs
    needed_by TEXT,  -- the jobs that need it
    PRIMARY KEY (tenant_id, run_id, job_name),
    CHECK (needs IS NOT NULL OR needed_by IS NOT NULL)
);

-- Groups. A row is one group of a run, whose jobs are named later by a ResolveGroup.
CREATE TABLE run_groups (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    run_id TEXT COLLATE BINARY NOT NULL,
    group_name TEXT COLLATE BINARY NOT NULL,
    digest TEXT,
    resolved_at BIGINT,
    PRIMARY KEY (tenant_id, run_id, group_name),
    CHECK ((digest IS NULL) = (resolved_at IS NULL))
);

-- Needs of groups. A row is one edge: a job needs a group. When the group is resolved, the job gets an edge for each job
-- of the group.
CREATE TABLE run_group_needs (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    run_id TEXT COLLATE BINARY NOT NULL,
    job_name TEXT COLLATE BINARY NOT NULL,
    group_name TEXT COLLATE BINARY NOT NULL,
    if_failed TEXT NOT NULL CHECK (if_failed IN ('skip', 'run')),
    PRIMARY KEY (tenant_id, run_id, job_name, group_name)
);

-- Pending commands. A row is one command that comes before its run or its job is known.
CREATE TABLE run_pending_commands (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    run_id TEXT COLLATE BINARY NOT NULL,
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

-- Jobs of which an event waits to be written to the outbox: a command may make 10,000 jobs ready, and its transaction must be short.
-- The event is JobReady, or JobSkipped if the job is skipped.
CREATE TABLE run_announcements (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    available_at BIGINT NOT NULL,  -- when it was written, or when it is tried again
    run_id TEXT COLLATE BINARY NOT NULL,
    job_name TEXT COLLATE BINARY NOT NULL,
    deferred_at BIGINT NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 1,  -- that of the job
    caused_by TEXT,  -- the id of the command that made the job ready or skipped it
    outputs_share INTEGER NOT NULL CHECK (outputs_share > 0),  -- how many bytes of outputs a JobReady has at most
    last_error TEXT,
    PRIMARY KEY (tenant_id, available_at, run_id, job_name)
);

-- Used by `next_available` and the clock repair. It has the whole key, because planners also use it for single rows.
CREATE INDEX run_announcements_available ON run_announcements (available_at, tenant_id, run_id, job_name);
