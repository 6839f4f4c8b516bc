-- Cancellations of many timers at once. See timer_service/timers/cancellations.py.

-- A row is one CancelTimers. A worker passes over the timers whose ids begin with the prefix, page by page, and continues at
-- `next_call_id`. It deletes the row with the last page.
CREATE TABLE timer_cancellations (
    tenant_id TEXT NOT NULL,
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
