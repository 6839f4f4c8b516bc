-- Timers. Rows are leased through available_at, as timer_service/core describes.
CREATE TABLE timer_schedules (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    service_call_id TEXT COLLATE BINARY NOT NULL,
    state TEXT COLLATE BINARY NOT NULL,
    due_at BIGINT NOT NULL,
    data TEXT,  -- NULL, too, if it is in long_texts
    large_data INTEGER CHECK (large_data > 1000),  -- how many characters it has there
    topic TEXT COLLATE BINARY,
    correlation_id TEXT,
    causation_id TEXT,
    traceparent TEXT,
    tracestate TEXT,
    event_id TEXT NOT NULL,
    registered_at BIGINT NOT NULL,
    reached_at BIGINT,
    cancelled_at BIGINT,
    expires_at BIGINT,
    expired_at BIGINT,
    position_epoch BIGINT NOT NULL,
    position_sequence BIGINT NOT NULL,
    available_at BIGINT,
    lease_token TEXT,
    attempt INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    last_error TEXT,
    PRIMARY KEY (tenant_id, service_call_id),
    -- The columns that each state sets. A timer can be claimed if and only if it is still to fire. One CASE instead of an
    -- IN: for each row that SQLite writes, it builds the list of an IN again. This took half of the time of a write.
    CHECK (CASE state
        WHEN 'Scheduled' THEN available_at IS NOT NULL AND COALESCE(reached_at, cancelled_at, expired_at) IS NULL
        WHEN 'Reached' THEN reached_at IS NOT NULL AND COALESCE(available_at, cancelled_at, expired_at) IS NULL
        WHEN 'Expired' THEN expired_at IS NOT NULL AND expires_at IS NOT NULL
            AND COALESCE(available_at, reached_at, cancelled_at) IS NULL
        WHEN 'Cancelled' THEN cancelled_at IS NOT NULL AND COALESCE(available_at, reached_at, expired_at) IS NULL
        WHEN 'Failed' THEN COALESCE(available_at, reached_at, cancelled_at, expired_at) IS NULL
        ELSE FALSE
    END),
    CHECK (lease_token IS NULL OR available_at IS NOT NULL),
    -- A timer never fires early.
    CHECK (available_at >= due_at),
    CHECK (reached_at >= due_at),
    -- A timer expires after its due time. From then on, it is never announced as reached, and before, never as expired.
    CHECK (expires_at > due_at),
    CHECK (reached_at < expires_at),
    CHECK (expired_at >= expires_at)
) /* postgres: WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0) */;

-- Used by the statements of lease.sql that select by available_at, such as `claim` and `next_available`, and by the gauges.
CREATE INDEX timer_schedules_available ON timer_schedules (available_at) WHERE available_at IS NOT NULL;

-- Used by `pending_tenants`, which steps from tenant to tenant, by `claim_of_tenant`, and by `page`, `count` and `oldest_due` for
-- Scheduled timers. It is on due_at and not on available_at, so a claim does not change it.
CREATE INDEX timer_schedules_scheduled ON timer_schedules (tenant_id, due_at, service_call_id)
    WHERE available_at IS NOT NULL;

-- Used by `page` and `count` for the other states, one index per state. One index over all states would have the same columns
-- as the index of Scheduled timers, and SQLite's planner would then not choose that partial index.
CREATE INDEX timer_schedules_reached ON timer_schedules (tenant_id, due_at, service_call_id) WHERE state = 'Reached';
CREATE INDEX timer_schedules_expired ON timer_schedules (tenant_id, due_at, service_call_id) WHERE state = 'Expired';
CREATE INDEX timer_schedules_cancelled ON timer_schedules (tenant_id, due_at, service_call_id) WHERE state = 'Cancelled';
CREATE INDEX timer_schedules_failed ON timer_schedules (tenant_id, due_at, service_call_id) WHERE state = 'Failed';

-- Used by `page` for the timers with a topic.
CREATE INDEX timer_schedules_topic ON timer_schedules (tenant_id, topic, state, due_at, service_call_id) WHERE topic IS NOT NULL;

-- Used by `delete_settled`.
CREATE INDEX timer_schedules_settled ON timer_schedules (COALESCE(reached_at, cancelled_at, expired_at))
    WHERE COALESCE(reached_at, cancelled_at, expired_at) IS NOT NULL;

-- Used by `sum_large_data`.
CREATE INDEX timer_schedules_large ON timer_schedules (tenant_id, large_data) WHERE large_data IS NOT NULL;

-- Cancellations of many timers at once. A row is one CancelTimers. See timer_service/timers/cancellations.py. A worker passes over the timers whose ids begin with the prefix, page by page, and continues at
-- `next_call_id`. It deletes the row with the last page.
CREATE TABLE timer_cancellations (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    position_epoch BIGINT NOT NULL,
    position_sequence BIGINT NOT NULL,
    prefix TEXT NOT NULL CHECK (prefix <> ''),
    command_id TEXT NOT NULL,
    correlation_id TEXT,
    traceparent TEXT,
    tracestate TEXT,
    next_call_id TEXT NOT NULL,
    cancelled_count BIGINT NOT NULL DEFAULT 0 CHECK (cancelled_count >= 0),
    available_at BIGINT NOT NULL,
    last_error TEXT,
    PRIMARY KEY (tenant_id, position_epoch, position_sequence)
);

-- Used by `next_available`, the clock repair and the gauges.
CREATE INDEX timer_cancellations_available ON timer_cancellations (available_at);

-- Used by `lock_due` and `due_tenants`.
CREATE INDEX timer_cancellations_unfinished ON timer_cancellations (tenant_id, available_at, position_epoch, position_sequence);
