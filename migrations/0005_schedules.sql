-- Schedules. A row is one schedule or a tombstone: what is remembered of a schedule that was deleted, or the pause of one that does not
-- exist yet. See docs/schedules.md.
CREATE TABLE schedules (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    schedule_id TEXT COLLATE BINARY NOT NULL,
    status TEXT COLLATE BINARY NOT NULL,
    cron TEXT,
    every_ms BIGINT CHECK (every_ms >= 1000),
    calendar TEXT,  -- JSON: every, unit and anchor
    zone TEXT,
    start_at BIGINT,
    end_at BIGINT,
    max_count INTEGER CHECK (max_count > 0),
    jitter_ms BIGINT CHECK (jitter_ms >= 0),
    catch_up TEXT,
    late_by_ms BIGINT CHECK (late_by_ms > 0),
    catch_up_limit INTEGER CHECK (catch_up_limit > 0),
    start TEXT CHECK (start IS NULL OR status <> 'deleted'),  -- JSON: the workflow that each slot starts, without the input: `data`
    topic TEXT COLLATE BINARY CHECK (topic IS NULL OR start IS NULL),
    data TEXT,
    data_size INTEGER NOT NULL,  -- the number of characters of `data`, which a pass does not read
    after_at BIGINT NOT NULL,  -- the cursor: each slot up to this instant has been fired or skipped, by the rules of the zone then
    after_wall_at BIGINT,  -- what the clocks of the zone showed at the last slot that was fired or skipped, as an instant in UTC
    slot_at BIGINT,
    zone_rules TEXT,  -- a hash of the zone's data, from which `slot_at` was computed
    available_at BIGINT,
    fired_count INTEGER NOT NULL CHECK (fired_count >= 0),
    missed_since BIGINT,
    last_slot_at BIGINT,
    last_fired_at BIGINT,
    last_skipped_at BIGINT,  -- the last slot that started no workflow
    last_skip_reason TEXT CHECK ((last_skip_reason IS NULL) = (last_skipped_at IS NULL)),
    last_error TEXT,
    is_paused INTEGER NOT NULL CHECK (CASE is_paused WHEN 0 THEN TRUE WHEN 1 THEN TRUE ELSE FALSE END),
    created_at BIGINT NOT NULL,
    ended_at BIGINT,
    end_reason TEXT,
    confirmed_at BIGINT,
    correlation_id TEXT,
    causation_id TEXT,
    traceparent TEXT,
    tracestate TEXT,
    -- The positions of the PutSchedule that created the schedule, and of the last one.
    created_epoch BIGINT NOT NULL,
    created_sequence BIGINT NOT NULL,
    defined_epoch BIGINT NOT NULL,
    defined_sequence BIGINT NOT NULL,
    PRIMARY KEY (tenant_id, schedule_id),
    -- A schedule fires if and only if it is active.
    CHECK (CASE status
        WHEN 'active' THEN slot_at IS NOT NULL AND available_at IS NOT NULL AND ended_at IS NULL AND is_paused = 0
        WHEN 'paused' THEN COALESCE(slot_at, available_at, ended_at) IS NULL AND is_paused = 1
        WHEN 'ended' THEN COALESCE(slot_at, available_at) IS NULL AND ended_at IS NOT NULL
        WHEN 'deleted' THEN COALESCE(slot_at, available_at) IS NULL AND ended_at IS NOT NULL
        ELSE FALSE
    END),
    CHECK ((status = 'ended') = (end_reason IS NOT NULL)),
    -- A schedule has one recurrence, and a tombstone has none.
    CHECK (CASE status
        WHEN 'deleted' THEN COALESCE(cron, calendar, data, topic) IS NULL AND every_ms IS NULL
        ELSE CASE WHEN cron IS NULL THEN (every_ms IS NULL) <> (calendar IS NULL) ELSE every_ms IS NULL AND calendar IS NULL END
            AND zone IS NOT NULL AND jitter_ms IS NOT NULL
            AND catch_up IS NOT NULL AND late_by_ms IS NOT NULL AND catch_up_limit IS NOT NULL
    END),
    CHECK ((data IS NULL) = (data_size = 0)),
    -- A slot fires once, and never early.
    CHECK (slot_at > after_at),
    CHECK (available_at >= slot_at),
    CHECK (slot_at < end_at),
    CHECK (fired_count <= max_count),
    CHECK (last_error IS NULL OR status = 'active'),
    CHECK (confirmed_at IS NULL OR ended_at IS NOT NULL)
) /* postgres: WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0) */;

-- Used by `due`, `count_available` and `next_available` of lease.sql, and by the gauge that counts active schedules.
CREATE INDEX schedules_available ON schedules (available_at) WHERE available_at IS NOT NULL;

-- Used by `due_tenants`, which steps from tenant to tenant, and by `due_of_tenant`. Schedules that wait for their jitter are not due.
CREATE INDEX schedules_due ON schedules (tenant_id, available_at, schedule_id) WHERE available_at IS NOT NULL;

-- Used by `page` and `count_live`.
CREATE INDEX schedules_by_status ON schedules (tenant_id, status, schedule_id);

-- Used by `page` for the schedules with a topic.
CREATE INDEX schedules_by_topic ON schedules (tenant_id, topic, status, schedule_id) WHERE topic IS NOT NULL;

-- Used by the gauge that counts schedules whose next slot cannot be computed.
CREATE INDEX schedules_failing ON schedules (tenant_id, schedule_id) WHERE last_error IS NOT NULL;

-- Used by `delete_settled`. Retention counts from the end of a schedule, or from the newest Put or Pause that found it ended.
CREATE INDEX schedules_ended ON schedules (COALESCE(confirmed_at, ended_at)) WHERE ended_at IS NOT NULL;

-- Backfills of schedules. A row is one BackfillSchedule that has not ended: its range, the definition that the schedule had when the
-- command was accepted, and how far it is. See timer_service/schedules/backfills.py.
CREATE TABLE schedule_backfills (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    position_epoch BIGINT NOT NULL,
    position_sequence BIGINT NOT NULL,
    schedule_id TEXT COLLATE BINARY NOT NULL,
    from_at BIGINT NOT NULL,
    to_at BIGINT NOT NULL,
    slot_limit INTEGER NOT NULL CHECK (slot_limit > 0),
    after_at BIGINT NOT NULL,  -- the cursor: each slot of the range up to this instant has fired or was skipped
    after_wall_at BIGINT,  -- as in `schedules`
    fired_count INTEGER NOT NULL CHECK (fired_count >= 0),
    skipped_count INTEGER NOT NULL CHECK (skipped_count >= 0),
    cron TEXT,
    every_ms BIGINT CHECK (every_ms >= 1000),
    calendar TEXT,  -- JSON: every, unit and anchor
    zone TEXT NOT NULL,
    start_at BIGINT,
    end_at BIGINT,
    jitter_ms BIGINT NOT NULL CHECK (jitter_ms >= 0),
    start TEXT,  -- as in `schedules`
    topic TEXT CHECK (topic IS NULL OR start IS NULL),
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
    CHECK (CASE WHEN cron IS NULL THEN (every_ms IS NULL) <> (calendar IS NULL) ELSE every_ms IS NULL AND calendar IS NULL END),
    CHECK ((data IS NULL) = (data_size = 0))
);

-- Used by `next_available`, the clock repair and the gauges.
CREATE INDEX schedule_backfills_available ON schedule_backfills (available_at);

-- Used by `lock_due`, and to find the tenants that have backfills.
CREATE INDEX schedule_backfills_turns ON schedule_backfills (tenant_id, available_at, position_epoch, position_sequence);

-- Used by `of_schedule`, which get-schedule asks.
CREATE INDEX schedule_backfills_of_schedule ON schedule_backfills (tenant_id, schedule_id, position_epoch, position_sequence);
