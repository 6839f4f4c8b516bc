-- What the limits of the tenants count. See timer_service/core/limits/quotas.py.

-- The number of characters of `data`, if they are more than 1,000. Rows with less data cost nothing to count.
ALTER TABLE timer_schedules ADD COLUMN large_data INTEGER CHECK (large_data > 1000);

UPDATE timer_schedules SET large_data = LENGTH(data) WHERE LENGTH(data) > 1000;

-- Used by `sum_large_data`.
CREATE INDEX timer_schedules_large ON timer_schedules (tenant_id, large_data) WHERE large_data IS NOT NULL;

-- Used by `sum_pending`.
CREATE INDEX runs_with_pending ON runs (tenant_id, pending_bytes) WHERE pending_bytes > 0;
