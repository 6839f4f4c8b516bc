-- Timers: one row per (tenant_id, service_call_id), leased through available_at (see timer_service/core).
CREATE TABLE timer_schedules (
    tenant_id TEXT NOT NULL,
    service_call_id TEXT NOT NULL,
    state TEXT NOT NULL,
    due_at BIGINT,
    data TEXT,
    correlation_id TEXT,
    causation_id TEXT,
    traceparent TEXT,
    tracestate TEXT,
    event_id TEXT,
    registered_at BIGINT NOT NULL,
    reached_at BIGINT,
    cancelled_at BIGINT,
    confirmed_at BIGINT,
    position_epoch BIGINT NOT NULL,
    position_sequence BIGINT NOT NULL,
    available_at BIGINT,
    lease_token TEXT,
    attempt INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    last_error TEXT,
    PRIMARY KEY (tenant_id, service_call_id),
    -- Only the tombstone of a timer that was cancelled before it was known has nothing to fire.
    CHECK (state = 'Cancelled' OR (due_at IS NOT NULL AND event_id IS NOT NULL)),
    -- What each state has. Exactly the timers still to fire can be claimed. (As one CASE: SQLite builds the list of an IN
    -- anew for each row it writes, which took half of the time of a write.)
    CHECK (CASE state
        WHEN 'Scheduled' THEN available_at IS NOT NULL AND COALESCE(reached_at, cancelled_at, confirmed_at) IS NULL
        WHEN 'Reached' THEN reached_at IS NOT NULL AND COALESCE(available_at, cancelled_at) IS NULL
        WHEN 'Cancelled' THEN cancelled_at IS NOT NULL AND COALESCE(available_at, reached_at) IS NULL
        WHEN 'Failed' THEN COALESCE(available_at, reached_at, cancelled_at, confirmed_at) IS NULL
        ELSE FALSE
    END),
    CHECK (lease_token IS NULL OR available_at IS NOT NULL),
    -- Never early.
    CHECK (available_at >= due_at),
    CHECK (reached_at >= due_at)
);

-- The claim and the loop's next wake.
CREATE INDEX timer_schedules_available ON timer_schedules (available_at) WHERE available_at IS NOT NULL;

-- The fair claim, which names tenants by skipping from one to the next, and lists of Scheduled timers. On due_at, not on
-- available_at: so claiming a row does not move it here.
CREATE INDEX timer_schedules_scheduled ON timer_schedules (tenant_id, due_at, service_call_id)
    WHERE available_at IS NOT NULL;

-- Lists and counts of the other states. Each state has an index of its own: beside one over all states, which has the same
-- columns, SQLite's planner would not choose the partial one.
CREATE INDEX timer_schedules_reached ON timer_schedules (tenant_id, due_at, service_call_id) WHERE state = 'Reached';
CREATE INDEX timer_schedules_cancelled ON timer_schedules (tenant_id, due_at, service_call_id) WHERE state = 'Cancelled';
CREATE INDEX timer_schedules_failed ON timer_schedules (tenant_id, due_at, service_call_id) WHERE state = 'Failed';

-- Retention counts from when a timer was settled, or from the newest command since that found it settled.
CREATE INDEX timer_schedules_settled ON timer_schedules (COALESCE(confirmed_at, reached_at, cancelled_at))
    WHERE reached_at IS NOT NULL OR cancelled_at IS NOT NULL;
