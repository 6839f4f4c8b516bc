-- Work signals: reminders of what happens to work items (see docs/signals.md).

-- Work items. `moved` is the position of the newest transition, which sets the status; `created` that of the oldest
-- CreateWorkItem, whose status holds while there is no transition. 0 0: there is none.
CREATE TABLE work_items (
    tenant_id TEXT NOT NULL,
    work_item_id TEXT NOT NULL,
    status TEXT,
    created_at BIGINT NOT NULL,
    created_epoch BIGINT NOT NULL,
    created_sequence BIGINT NOT NULL,
    moved_epoch BIGINT NOT NULL,
    moved_sequence BIGINT NOT NULL,
    PRIMARY KEY (tenant_id, work_item_id),
    CHECK (status IS NOT NULL OR (moved_epoch, moved_sequence) = (0, 0)),
    CHECK (status IS NULL OR (created_epoch, created_sequence) <> (0, 0) OR (moved_epoch, moved_sequence) <> (0, 0))
);

-- What happened to work items. `evaluate_at` is the place in the queue of events not yet evaluated, null once one is;
-- `evaluated_to` the last signal it was held against.
CREATE TABLE work_item_events (
    tenant_id TEXT NOT NULL,
    work_item_id TEXT NOT NULL,
    event_id TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('status.transition')),
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

-- The queue of each tenant's events to evaluate: what was evaluated before costs nothing.
CREATE INDEX work_item_events_to_evaluate ON work_item_events (tenant_id, evaluate_at) WHERE evaluate_at IS NOT NULL;

-- Events newer than a signal that was delivered after them. What looks for one by its key says nothing of its kind, so that
-- a planner with old statistics can't come to look for it here.
CREATE INDEX work_item_events_in_order ON work_item_events (tenant_id, work_item_id, position_epoch, position_sequence)
    WHERE kind = 'status.transition';

-- Retention.
CREATE INDEX work_item_events_evaluated ON work_item_events (recorded_at) WHERE evaluate_at IS NULL;

-- Signals. One without a status is a tombstone: it keeps commands that came before the one that creates the signal.
-- `defined` is the position of the command that gave the definition; the signal fires on what is newer than `since`.
-- `history`: its newest commands and firings, as JSON (see signals/store.py). Retention goes by `unused_since`.
CREATE TABLE work_signals (
    tenant_id TEXT NOT NULL,
    signal_id TEXT NOT NULL,
    status TEXT,
    work_item_id TEXT,
    trigger_kind TEXT CHECK (trigger_kind IN ('event', 'time')),
    trigger_spec TEXT,
    note TEXT,
    created_at BIGINT NOT NULL,
    last_fired_at BIGINT,
    last_error TEXT,
    unused_since BIGINT,
    defined_epoch BIGINT NOT NULL,
    defined_sequence BIGINT NOT NULL,
    since_epoch BIGINT NOT NULL,
    since_sequence BIGINT NOT NULL,
    history TEXT NOT NULL,
    PRIMARY KEY (tenant_id, signal_id),
    CHECK ((status IS NULL) = (trigger_kind IS NULL)),
    CHECK ((trigger_kind IS NULL) = (trigger_spec IS NULL)),
    CHECK ((status IS NULL) = (defined_epoch = 0 AND defined_sequence = 0)),
    CHECK ((since_epoch, since_sequence) >= (defined_epoch, defined_sequence)),
    CHECK (CASE status
        WHEN 'active' THEN unused_since IS NULL
        WHEN 'paused' THEN unused_since IS NULL
        WHEN 'fired' THEN unused_since IS NULL AND last_fired_at IS NOT NULL
        WHEN 'resolved' THEN unused_since IS NOT NULL
        WHEN 'cancelled' THEN unused_since IS NOT NULL
        ELSE status IS NULL AND unused_since IS NOT NULL
    END)
);

-- The active signals that wait for a work item, and lists of a work item's.
CREATE INDEX work_signals_of_item ON work_signals (tenant_id, work_item_id, status, signal_id);

-- Lists by status, which leave tombstones out. What asks for a work item's signals says nothing of that, so that a planner
-- with old statistics can't come to look for them among all those of a tenant.
CREATE INDEX work_signals_by_status ON work_signals (tenant_id, status, signal_id) WHERE trigger_kind IS NOT NULL;

-- Retention.
CREATE INDEX work_signals_unused ON work_signals (unused_since) WHERE unused_since IS NOT NULL;

-- Firings: one per signal, definition and cause, leased through available_at (see timer_service/core). `defined` is the
-- position of the signal's definition, `position` that of the cause.
CREATE TABLE work_signal_firings (
    tenant_id TEXT NOT NULL,
    firing_id TEXT NOT NULL,
    signal_id TEXT NOT NULL,
    defined_epoch BIGINT NOT NULL,
    defined_sequence BIGINT NOT NULL,
    dedupe_key TEXT NOT NULL,
    work_item_id TEXT,
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
    lease_token TEXT,
    attempt INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    last_error TEXT,
    PRIMARY KEY (tenant_id, firing_id),
    -- A cause counts once.
    CONSTRAINT work_signal_firings_cause UNIQUE (tenant_id, signal_id, defined_epoch, defined_sequence, dedupe_key),
    -- What happened before a definition does not count for it.
    CHECK ((position_epoch, position_sequence) >= (defined_epoch, defined_sequence)),
    CHECK (CASE status
        WHEN 'queued' THEN available_at IS NOT NULL AND lease_token IS NULL AND settled_at IS NULL
        WHEN 'processing' THEN available_at IS NOT NULL AND lease_token IS NOT NULL AND settled_at IS NULL
        WHEN 'enqueued' THEN settled_at IS NOT NULL AND settled_at >= due_at AND available_at IS NULL AND lease_token IS NULL
        WHEN 'failed' THEN settled_at IS NOT NULL AND available_at IS NULL AND lease_token IS NULL
        ELSE FALSE
    END),
    -- Never early.
    CHECK (available_at >= due_at)
);

-- The claim and the loop's next wake.
CREATE INDEX work_signal_firings_available ON work_signal_firings (available_at) WHERE available_at IS NOT NULL;

-- The fair claim.
CREATE INDEX work_signal_firings_pending ON work_signal_firings (tenant_id, due_at) WHERE available_at IS NOT NULL;

-- Lists of a signal's.
CREATE INDEX work_signal_firings_of_signal ON work_signal_firings (tenant_id, signal_id, created_at, firing_id);

-- The gauge of what was given up, and one of those by its key.
CREATE INDEX work_signal_firings_failed ON work_signal_firings (tenant_id, firing_id) WHERE status = 'failed';

-- Retention.
CREATE INDEX work_signal_firings_settled ON work_signal_firings (settled_at) WHERE settled_at IS NOT NULL;

-- The follow-up work of fired signals.
CREATE TABLE work_item_tasks (
    tenant_id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    work_item_id TEXT NOT NULL,
    signal_id TEXT NOT NULL,
    firing_id TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (tenant_id, task_id)
);

-- Lists of a work item's.
CREATE INDEX work_item_tasks_of_item ON work_item_tasks (tenant_id, work_item_id, created_at, task_id);

-- Deleted with their signal.
CREATE INDEX work_item_tasks_of_signal ON work_item_tasks (tenant_id, signal_id);
