-- Schedules that start workflows. `start` is JSON: what each slot starts, without the input, which is in `data`. The other two columns
-- say which slot started no workflow last, and why.
ALTER TABLE schedules ADD COLUMN start TEXT CHECK (start IS NULL OR status <> 'deleted');
ALTER TABLE schedules ADD COLUMN last_skipped_at BIGINT;
ALTER TABLE schedules ADD COLUMN last_skip_reason TEXT CHECK ((last_skip_reason IS NULL) = (last_skipped_at IS NULL));
