-- Backfills of schedules. A row is one BackfillSchedule that has not ended: its range, the definition that the schedule had when the
-- command was accepted, and how far it is. See timer_service/schedules/backfills.py.
-- The keys have the collation "C": see 0005_engine.postgres.sql.
CREATE TABLE schedule_backfills (
    tenant_id TEXT COLLATE "C" NOT NULL,
    position_epoch BIGINT NOT NULL,
    position_sequence BIGINT NOT NULL,
    schedule_id TEXT COLLATE "C" NOT NULL,
    from_at BIGINT NOT NULL,
    to_at BIGINT NOT NULL,
    slot_limit INTEGER NOT NULL CHECK (slot_limit > 0),
    after_at BIGINT NOT NULL,  -- the cursor: each slot of the range up to this instant has fired or was skipped
    fired_count INTEGER NOT NULL CHECK (fired_count >= 0),
    skipped_count INTEGER NOT NULL CHECK (skipped_count >= 0),
    cron TEXT,
    every_ms BIGINT CHECK (every_ms >= 1000),
    zone TEXT NOT NULL,
    start_at BIGINT,
    end_at BIGINT,
    jitter_ms BIGINT NOT NULL CHECK (jitter_ms >= 0),
    start TEXT,  -- as in `schedules`
    data TEXT,
    data_size INTEGER NOT NULL,  -- the number of characters of `data`, which a pass reads only if slots fire
    available_at BIGINT NOT NULL,
    last_error TEXT,
    correlation_id TEXT,
    causation_id TEXT NOT NULL,
    traceparent TEXT,
    tracestate TEXT,
    PRIMARY KEY (tenant_id, position_epoch, position_sequence),
    CHECK (from_at < to_at),
    CHECK (after_at >= from_at - 1 AND after_at < to_at),
    -- A backfill that has handled as many slots as it may has ended, and has no row.
    CHECK (fired_count + skipped_count < slot_limit),
    CHECK ((cron IS NULL) <> (every_ms IS NULL)),
    CHECK ((data IS NULL) = (data_size = 0))
);
