-- Work signals: reminders of what happens to work items. See docs/signals.md.

-- Work items. A row is one work item that a CreateWorkItem or a TransitionWorkItem has named, with its newest status.
CREATE TABLE work_items (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    work_item_id TEXT COLLATE BINARY NOT NULL,
    status TEXT,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (tenant_id, work_item_id)
);

-- Transitions. A row is one transition of a work item to another status. `evaluate_at` is its place in the queue of unevaluated
-- transitions, and null after its evaluation. `evaluated_to` is the last signal that the worker has matched it with.
CREATE TABLE work_item_events (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    work_item_id TEXT COLLATE BINARY NOT NULL,
    event_id TEXT COLLATE BINARY NOT NULL,
    from_status TEXT,
    to_status TEXT NOT NULL,
    occurred_at BIGINT NOT NULL,
    recorded_at BIGINT NOT NULL,
    position_epoch BIGINT NOT NULL,
    position_sequence BIGINT NOT NULL,
    correlation_id TEXT,
    causation_id TEXT,
    traceparent TEXT,
    tracestate TEXT,
    evaluate_at BIGINT,
    evaluated_to TEXT NOT NULL,
    PRIMARY KEY (tenant_id, work_item_id, event_id)
);

-- Used by `waiting_tenants` and `next_events`, which read the queue of each tenant, and by the gauge that counts unevaluated
-- transitions. Evaluated transitions are not in it.
CREATE INDEX work_item_events_to_evaluate ON work_item_events (tenant_id, evaluate_at) WHERE evaluate_at IS NOT NULL;

-- Used by `delete_events`, the retention of evaluated transitions.
CREATE INDEX work_item_events_evaluated ON work_item_events (recorded_at) WHERE evaluate_at IS NULL;

-- Signals. A row is one signal. `defined` is the position of the command that created it. It fires on transitions that are newer
-- than `since`. Retention counts from `ended_at`.
CREATE TABLE work_signals (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    signal_id TEXT COLLATE BINARY NOT NULL,
    status TEXT COLLATE BINARY NOT NULL,
    work_item_id TEXT COLLATE BINARY,
    trigger_kind TEXT NOT NULL CHECK (trigger_kind IN ('event', 'time')),
    trigger_spec TEXT NOT NULL,
    note TEXT,
    created_at BIGINT NOT NULL,
    last_fired_at BIGINT,
    last_error TEXT,
    ended_at BIGINT,
    defined_epoch BIGINT NOT NULL,
    defined_sequence BIGINT NOT NULL,
    since_epoch BIGINT NOT NULL,
    since_sequence BIGINT NOT NULL,
    PRIMARY KEY (tenant_id, signal_id),
    CHECK ((since_epoch, since_sequence) >= (defined_epoch, defined_sequence)),
    CHECK (CASE status
        WHEN 'active' THEN ended_at IS NULL
        WHEN 'paused' THEN ended_at IS NULL
        WHEN 'fired' THEN ended_at IS NULL AND last_fired_at IS NOT NULL
        WHEN 'resolved' THEN ended_at IS NOT NULL
        WHEN 'cancelled' THEN ended_at IS NOT NULL
        ELSE FALSE
    END)
);

-- Used by `waiting`, which finds the active signals that wait for a work item, and by `page` for the signals of a work item.
CREATE INDEX work_signals_of_item ON work_signals (tenant_id, work_item_id, status, signal_id);

-- Used by `page` for the signals of a status, and by the count of open signals. The statements for the signals of a work item do
-- not have its condition, so that a planner cannot use this index for them and read all signals of a tenant.
CREATE INDEX work_signals_by_status ON work_signals (tenant_id, status, signal_id) WHERE trigger_kind <> '';

-- Used by `ended`, the retention of signals.
CREATE INDEX work_signals_ended ON work_signals (ended_at) WHERE ended_at IS NOT NULL;

-- Firings. A row is one firing: one cause that makes one definition of a signal fire. Its id depends only on these. It is due
-- from available_at on, and is processed in the transaction that selects it. `defined` is the position of the signal's definition, `position` is the
-- position of the cause. An enqueued firing with a work item is a task of the work item: the follow-up work. It stays as long as
-- the signal.
CREATE TABLE work_signal_firings (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    firing_id TEXT COLLATE BINARY NOT NULL,
    signal_id TEXT COLLATE BINARY NOT NULL,
    defined_epoch BIGINT NOT NULL,
    defined_sequence BIGINT NOT NULL,
    dedupe_key TEXT COLLATE BINARY NOT NULL,
    work_item_id TEXT COLLATE BINARY,
    status TEXT NOT NULL,
    due_at BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    settled_at BIGINT,
    position_epoch BIGINT NOT NULL,
    position_sequence BIGINT NOT NULL,
    correlation_id TEXT,
    causation_id TEXT,
    traceparent TEXT,
    tracestate TEXT,
    available_at BIGINT,
    attempt INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    last_error TEXT,
    PRIMARY KEY (tenant_id, firing_id),
    -- A cause that is older than a definition does not fire it.
    CHECK ((position_epoch, position_sequence) >= (defined_epoch, defined_sequence)),
    CHECK (CASE status
        WHEN 'queued' THEN available_at IS NOT NULL AND settled_at IS NULL
        WHEN 'enqueued' THEN settled_at IS NOT NULL AND settled_at >= due_at AND available_at IS NULL
        WHEN 'failed' THEN settled_at IS NOT NULL AND available_at IS NULL
        ELSE FALSE
    END),
    -- A firing is never processed early.
    CHECK (available_at >= due_at)
) /* postgres: WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0) */;

-- Used by the statements of lease.sql that select by available_at, such as `claim` and `next_available`, and by the gauges.
CREATE INDEX work_signal_firings_available ON work_signal_firings (available_at) WHERE available_at IS NOT NULL;

-- Used by `pending_tenants` and `claim_of_tenant`, which share a claim between tenants.
CREATE INDEX work_signal_firings_pending ON work_signal_firings (tenant_id, due_at) WHERE available_at IS NOT NULL;

-- Used by `page_of_signal`, `fail_unsettled` and `delete_of_signal`, which find the firings of a signal.
CREATE INDEX work_signal_firings_of_signal ON work_signal_firings (tenant_id, signal_id, created_at, firing_id);

-- Used by the gauge that counts failed firings.
CREATE INDEX work_signal_firings_failed ON work_signal_firings (tenant_id, firing_id) WHERE status = 'failed';

-- Used by `tasks_of_item`, which lists the tasks of a work item.
CREATE INDEX work_signal_firings_tasks ON work_signal_firings (tenant_id, work_item_id, settled_at, firing_id)
    WHERE status = 'enqueued';

-- Used by `delete_settled`, the retention of firings without a task.
CREATE INDEX work_signal_firings_settled ON work_signal_firings (settled_at)
    WHERE settled_at IS NOT NULL AND (status = 'failed' OR work_item_id IS NULL);
