-- Cancellations of many timers at once. See timer_service/timers/cancellations.py.

-- A row is one CancelTimers. A worker passes over the timers whose ids begin with the prefix, page by page, and continues at
-- `next_call_id`. A finished row stays, because it is the tombstone of every timer that an older ScheduleTimer would schedule.
CREATE TABLE timer_cancellations (
    tenant_id TEXT NOT NULL,
    position_epoch BIGINT NOT NULL,
    position_sequence BIGINT NOT NULL,
    prefix TEXT NOT NULL CHECK (prefix <> ''),
    command_id TEXT NOT NULL,
    correlation_id TEXT,
    traceparent TEXT,
    tracestate TEXT,
    added_at BIGINT NOT NULL,
    next_call_id TEXT NOT NULL,
    pass_number INTEGER NOT NULL DEFAULT 1 CHECK (pass_number >= 1),
    cancelled_count BIGINT NOT NULL DEFAULT 0 CHECK (cancelled_count >= 0),
    available_at BIGINT,
    finished_at BIGINT,
    PRIMARY KEY (tenant_id, position_epoch, position_sequence),
    CHECK ((available_at IS NULL) = (finished_at IS NOT NULL))
);

-- Used by `any_newer`, which each batch of commands asks.
CREATE INDEX timer_cancellations_newest ON timer_cancellations (position_epoch, position_sequence);

-- Used by `next_available`, the clock repair and the gauges.
CREATE INDEX timer_cancellations_available ON timer_cancellations (available_at) WHERE available_at IS NOT NULL;

-- Used by `lock_due`, and to find the tenants that have unfinished cancellations.
CREATE INDEX timer_cancellations_unfinished ON timer_cancellations (tenant_id, available_at, position_epoch, position_sequence)
WHERE available_at IS NOT NULL;

-- Used by `prefix_lengths`.
CREATE INDEX timer_cancellations_lengths ON timer_cancellations (tenant_id, length(prefix));

-- Used by `newest_of_prefix`.
CREATE INDEX timer_cancellations_prefix ON timer_cancellations (tenant_id, prefix, position_epoch, position_sequence);

-- Used by `delete_finished`.
CREATE INDEX timer_cancellations_finished ON timer_cancellations (finished_at) WHERE finished_at IS NOT NULL;
