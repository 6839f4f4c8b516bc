-- The indexes of `schedule_backfills`, on both engines.
-- Used by `next_available`, the clock repair and the gauges.
CREATE INDEX schedule_backfills_available ON schedule_backfills (available_at);

-- Used by `lock_due`, and to find the tenants that have backfills.
CREATE INDEX schedule_backfills_turns ON schedule_backfills (tenant_id, available_at, position_epoch, position_sequence);

-- Used by `of_schedule`, which get-schedule asks.
CREATE INDEX schedule_backfills_of_schedule ON schedule_backfills (tenant_id, schedule_id, position_epoch, position_sequence);
