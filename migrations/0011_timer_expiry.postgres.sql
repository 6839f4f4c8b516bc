-- The expiry of timers, and their state Expired.
ALTER TABLE timer_schedules
    ADD COLUMN expires_at BIGINT,
    ADD COLUMN expired_at BIGINT,
    -- The columns that each state sets. PostgreSQL has named this constraint of migration 2 by its place.
    DROP CONSTRAINT timer_schedules_check,
    ADD CONSTRAINT timer_schedules_state CHECK (CASE state
        WHEN 'Scheduled' THEN available_at IS NOT NULL AND COALESCE(reached_at, cancelled_at, expired_at) IS NULL
        WHEN 'Reached' THEN reached_at IS NOT NULL AND COALESCE(available_at, cancelled_at, expired_at) IS NULL
        WHEN 'Expired' THEN expired_at IS NOT NULL AND expires_at IS NOT NULL
            AND COALESCE(available_at, reached_at, cancelled_at) IS NULL
        WHEN 'Cancelled' THEN cancelled_at IS NOT NULL AND COALESCE(available_at, reached_at, expired_at) IS NULL
        WHEN 'Failed' THEN COALESCE(available_at, reached_at, cancelled_at, expired_at) IS NULL
        ELSE FALSE
    END),
    -- A timer expires after its due time. From then on, it is never announced as reached, and before, never as expired.
    ADD CHECK (expires_at > due_at),
    ADD CHECK (reached_at < expires_at),
    ADD CHECK (expired_at >= expires_at);

-- Used by `page` and `count`.
CREATE INDEX timer_schedules_expired ON timer_schedules (tenant_id, due_at, service_call_id) WHERE state = 'Expired';

-- Used by `delete_settled`.
DROP INDEX timer_schedules_settled;

CREATE INDEX timer_schedules_settled ON timer_schedules (COALESCE(reached_at, cancelled_at, expired_at))
    WHERE COALESCE(reached_at, cancelled_at, expired_at) IS NOT NULL;
