-- Workflows. A row without a type is not started: messages wait for its start, or it was cancelled before. See docs/workflows.md.
-- Rows are leased through available_at, as timer_service/core describes, but workers hold the leases.
CREATE TABLE workflows (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    workflow_id TEXT COLLATE BINARY NOT NULL,
    type TEXT COLLATE BINARY,
    queue TEXT COLLATE BINARY,
    status TEXT COLLATE BINARY NOT NULL,
    due_at BIGINT,
    -- The instant, by the service's clock, from which available_at counts. NULL: it does not depend on this clock. If it is in the
    -- future, the clock was ahead when it was written.
    counted_from BIGINT,
    available_at BIGINT,
    lease_token TEXT,
    worker_id TEXT,
    claimed_at BIGINT,
    lease_ms INTEGER CHECK (lease_ms > 0),
    report_number INTEGER CHECK (report_number >= 0),  -- the highest one that was handled under the token; 0: none
    attempt INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    -- The attempt whose lease was renewed last, so that a worker has run the function; 0: none since the last report.
    renewed INTEGER NOT NULL DEFAULT 0 CHECK (renewed >= 0),
    last_error TEXT,
    deadline_at BIGINT,
    overdue_at BIGINT,  -- when the service ends it: at its deadline, or later if that has failed
    retry TEXT,  -- JSON; NULL: the default
    concurrency_key TEXT COLLATE BINARY,
    concurrency_limit INTEGER CHECK (concurrency_limit > 0),
    when_busy TEXT CHECK (when_busy IN ('skip', 'queue', 'replace')),
    key_place BIGINT,  -- the place of a queued workflow among those that wait for its concurrency key
    -- When the worker of concurrency keys looks at its key: since it has ended, or is queued to replace another one.
    key_due_at BIGINT CHECK (key_due_at IS NULL OR concurrency_key IS NOT NULL),
    digest TEXT,  -- of type, queue and input
    input_bytes INTEGER NOT NULL DEFAULT 0 CHECK (input_bytes >= 0),
    effects INTEGER NOT NULL DEFAULT 0 CHECK (effects >= 0),
    effect_bytes INTEGER NOT NULL DEFAULT 0 CHECK (effect_bytes >= 0),
    seen INTEGER NOT NULL DEFAULT 0 CHECK (seen >= 0),  -- the highest seq of its effects
    messages INTEGER NOT NULL DEFAULT 0 CHECK (messages >= 0),  -- those that wait, and the bytes of their data
    message_bytes INTEGER NOT NULL DEFAULT 0 CHECK (message_bytes >= 0),
    blocks INTEGER NOT NULL DEFAULT 0 CHECK (blocks >= 0),  -- the releases as not deterministic in a row
    times_blocked INTEGER NOT NULL DEFAULT 0 CHECK (times_blocked >= 0),
    retries INTEGER NOT NULL DEFAULT 0 CHECK (retries >= 0),
    settled_by TEXT,  -- the last token that ended a task
    failure_code TEXT,
    failed_step TEXT,
    reason TEXT,
    created_at BIGINT NOT NULL,
    ended_at BIGINT,
    -- 1: retention has deleted some of its rows. It never continues.
    is_deleting INTEGER NOT NULL DEFAULT 0 CHECK (is_deleting = 0 OR (is_deleting = 1 AND ended_at IS NOT NULL)),
    correlation_id TEXT,
    causation_id TEXT,
    traceparent TEXT,
    tracestate TEXT,
    -- The positions of the command that started it, and of the newest CancelWorkflow before that.
    started_epoch BIGINT NOT NULL,
    started_sequence BIGINT NOT NULL,
    cancelled_epoch BIGINT NOT NULL,
    cancelled_sequence BIGINT NOT NULL,
    PRIMARY KEY (tenant_id, workflow_id),
    -- The columns that each status sets. Workers can claim a workflow if and only if it waits or runs.
    CHECK (CASE status
        WHEN 'queued' THEN due_at IS NOT NULL AND concurrency_key IS NOT NULL AND COALESCE(lease_token, worker_id) IS NULL
            AND COALESCE(available_at, claimed_at, lease_ms, report_number, ended_at) IS NULL
        WHEN 'waiting' THEN available_at IS NOT NULL AND COALESCE(lease_token, worker_id) IS NULL
            AND COALESCE(claimed_at, lease_ms, report_number, ended_at) IS NULL
        WHEN 'running' THEN available_at IS NOT NULL AND lease_token IS NOT NULL AND worker_id IS NOT NULL
            AND claimed_at IS NOT NULL AND lease_ms IS NOT NULL AND report_number IS NOT NULL AND ended_at IS NULL
        WHEN 'parked' THEN COALESCE(available_at, claimed_at, lease_ms, report_number, ended_at) IS NULL
            AND COALESCE(lease_token, worker_id) IS NULL
        WHEN 'completed' THEN ended_at IS NOT NULL
        WHEN 'failed' THEN ended_at IS NOT NULL
        WHEN 'cancelled' THEN ended_at IS NOT NULL
        ELSE FALSE
    END),
    CHECK ((deadline_at IS NULL) = (overdue_at IS NULL)),
    CHECK (ended_at IS NULL OR (COALESCE(available_at, claimed_at, lease_ms, report_number) IS NULL
        AND COALESCE(lease_token, worker_id) IS NULL)),
    CHECK ((available_at IS NULL) = (due_at IS NULL OR status = 'queued')),
    CHECK ((status = 'queued') = (key_place IS NOT NULL)),
    CHECK ((concurrency_key IS NULL) = (concurrency_limit IS NULL)),
    CHECK ((concurrency_key IS NULL) = (when_busy IS NULL)),
    CHECK (available_at >= due_at),  -- a workflow never continues early
    CHECK ((status = 'failed') = (failure_code IS NOT NULL)),
    -- A workflow that is not started counts as cancelled.
    CHECK (CASE WHEN type IS NULL
        THEN status = 'cancelled' AND COALESCE(queue, digest, retry, concurrency_key) IS NULL AND deadline_at IS NULL
        ELSE queue IS NOT NULL AND digest IS NOT NULL
    END),
    CHECK (seen <= effects)
) /* postgres: WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0) */;

-- Used by the claim, which looks at one lane: a tenant, a queue and a type.
CREATE INDEX workflows_lane ON workflows (tenant_id, queue, type, available_at) WHERE available_at IS NOT NULL;

-- Used by the worker that ends workflows at their deadline.
CREATE INDEX workflows_deadline ON workflows (overdue_at) WHERE overdue_at IS NOT NULL AND ended_at IS NULL;

-- Used by `deadline_tenants` and `find_overdue`: tenants take turns, so the many deadlines of one delay no other.
CREATE INDEX workflows_deadline_of_tenant ON workflows (tenant_id, overdue_at)
WHERE overdue_at IS NOT NULL AND ended_at IS NULL;

-- The workflows that have their concurrency key, the oldest first.
CREATE INDEX workflows_concurrency ON workflows (tenant_id, concurrency_key, created_at, workflow_id)
WHERE concurrency_key IS NOT NULL AND key_place IS NULL AND ended_at IS NULL;

-- Those that wait for it, in order.
CREATE UNIQUE INDEX workflows_queued ON workflows (tenant_id, concurrency_key, key_place) WHERE key_place IS NOT NULL;

-- Used by the worker of concurrency keys. Tenants take turns.
CREATE INDEX workflows_key_due ON workflows (key_due_at) WHERE key_due_at IS NOT NULL;
CREATE INDEX workflows_key_due_of_tenant ON workflows (tenant_id, key_due_at) WHERE key_due_at IS NOT NULL;

-- Used by `page_open`, `count_open` and the limits.
CREATE INDEX workflows_open ON workflows (tenant_id, created_at, workflow_id) WHERE ended_at IS NULL;

-- Used by `page_ended` and `count_ended`.
CREATE INDEX workflows_by_status ON workflows (tenant_id, status, created_at, workflow_id)
WHERE ended_at IS NOT NULL AND type IS NOT NULL;

-- Used by the gauges.
CREATE INDEX workflows_failed ON workflows (tenant_id, workflow_id) WHERE status = 'failed';
CREATE INDEX workflows_blocked ON workflows (tenant_id, workflow_id) WHERE blocks >= 3 AND ended_at IS NULL;

-- Used by `sum_stored`. Workflows with little data and few effects cost nothing to count.
CREATE INDEX workflows_large ON workflows (tenant_id, input_bytes, effect_bytes, message_bytes, effects)
WHERE input_bytes + effect_bytes + message_bytes > 1000 OR effects > 10;

-- Used by retention.
CREATE INDEX workflows_ended ON workflows (ended_at) WHERE ended_at IS NOT NULL;

-- Used by the clock repair.
CREATE INDEX workflows_counted ON workflows (counted_from) WHERE counted_from IS NOT NULL;

-- The large texts of a workflow, in a table of their own: SQLite rewrites whole rows, and `workflows` is written often.
CREATE TABLE workflow_data (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    workflow_id TEXT COLLATE BINARY NOT NULL,
    input TEXT,
    result TEXT,
    error TEXT,  -- JSON
    PRIMARY KEY (tenant_id, workflow_id)
);

-- What a workflow awaits or has awaited: steps, sleeps and waits for messages.
CREATE TABLE workflow_effects (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    workflow_id TEXT COLLATE BINARY NOT NULL,
    name TEXT COLLATE BINARY NOT NULL,
    n INTEGER NOT NULL CHECK (n >= 0),  -- how many earlier effects of the workflow have this name
    kind TEXT NOT NULL,
    seq INTEGER CHECK (seq > 0),
    status TEXT NOT NULL,
    failures INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0),
    due_at BIGINT,  -- when a sleep ends, a wait for a message times out, or a step may start again
    counted_from BIGINT,  -- as in `workflows`, for due_at
    result TEXT,
    size INTEGER NOT NULL DEFAULT 0 CHECK (size >= 0),  -- the bytes of result and error
    digest TEXT,  -- of the result
    error TEXT,  -- JSON
    PRIMARY KEY (tenant_id, workflow_id, name, n),
    CHECK (CASE status
        WHEN 'open' THEN result IS NULL AND seq IS NULL
        WHEN 'done' THEN error IS NULL
        WHEN 'failed' THEN result IS NULL AND kind <> 'sleep'
        ELSE FALSE
    END),
    CHECK (CASE kind
        WHEN 'step' THEN TRUE
        WHEN 'sleep' THEN due_at IS NOT NULL AND failures = 0
        WHEN 'message' THEN failures = 0
        ELSE FALSE
    END)
) /* postgres: WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0) */;

-- The order in which the function got the results. Partial, like the next one: otherwise PostgreSQL without statistics finds a
-- single effect by one of these indices, and reads all effects of its workflow.
CREATE UNIQUE INDEX workflow_effects_seen ON workflow_effects (tenant_id, workflow_id, seq) WHERE seq IS NOT NULL;

-- Used to find the effects that the function has not got.
CREATE INDEX workflow_effects_unseen ON workflow_effects (tenant_id, workflow_id, name, n) WHERE seq IS NULL;

-- Used by the clock repair.
CREATE INDEX workflow_effects_counted ON workflow_effects (counted_from) WHERE counted_from IS NOT NULL;

-- Messages to workflows. A message that was taken stays without its data, so that a second one with its message id is recognised.
CREATE TABLE workflow_messages (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    workflow_id TEXT COLLATE BINARY NOT NULL,
    name TEXT COLLATE BINARY NOT NULL,
    position_epoch BIGINT NOT NULL,
    position_sequence BIGINT NOT NULL,
    message_id TEXT COLLATE BINARY,
    data TEXT,
    size INTEGER NOT NULL CHECK (size >= 0),  -- the bytes of data
    sent_at BIGINT NOT NULL,  -- the command time
    taken_at BIGINT,
    PRIMARY KEY (tenant_id, workflow_id, name, position_epoch, position_sequence),
    CHECK (taken_at IS NULL OR data IS NULL)
);

-- Used to find the next message of a name.
CREATE INDEX workflow_messages_unread ON workflow_messages (
    tenant_id, workflow_id, name, position_epoch, position_sequence
) WHERE taken_at IS NULL;

-- A message id is used once for each workflow.
CREATE UNIQUE INDEX workflow_messages_id ON workflow_messages (tenant_id, workflow_id, message_id)
WHERE message_id IS NOT NULL;

-- The processes that execute workflows.
CREATE TABLE workflow_workers (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    worker_id TEXT COLLATE BINARY NOT NULL,
    name TEXT,
    queue TEXT COLLATE BINARY NOT NULL,
    types TEXT NOT NULL,  -- JSON
    slots INTEGER NOT NULL CHECK (slots > 0),
    first_seen_at BIGINT NOT NULL,
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (tenant_id, worker_id),
    CHECK (seen_at >= first_seen_at)
);

-- Used to find the workers of a lane that were seen last.
CREATE INDEX workflow_workers_queue ON workflow_workers (tenant_id, queue, seen_at);

-- Used by retention.
CREATE INDEX workflow_workers_seen ON workflow_workers (seen_at);

-- A tenant has 1,000 workers at most; those that were not seen for longest are deleted. Used by `forget`.
CREATE INDEX workflow_workers_of_tenant ON workflow_workers (tenant_id, seen_at);
