-- name: add
-- Adds a backfill.
INSERT INTO schedule_backfills ({columns}) VALUES ({values})

-- name: find_created
-- Returns the position of the PutSchedule that created a schedule, unless it is deleted.
SELECT tenant_id, schedule_id, created_epoch, created_sequence
FROM /* each of many */ schedules
WHERE tenant_id = :tenant_id AND schedule_id = :schedule_id AND status <> 'deleted'

-- name: load_data
-- Returns the data of a backfill.
SELECT tenant_id, position_epoch, position_sequence, data
FROM /* each of many */ schedule_backfills
WHERE tenant_id = :tenant_id AND position_epoch = :position_epoch AND position_sequence = :position_sequence

-- name: save
-- Writes how far a locked backfill is.
UPDATE schedule_backfills
SET after_at = :after_at, after_wall_at = :after_wall_at, fired_count = :fired_count, skipped_count = :skipped_count, last_error = NULL
WHERE tenant_id = :tenant_id AND position_epoch = :position_epoch AND position_sequence = :position_sequence

-- name: delete
-- Deletes a locked backfill that has ended.
DELETE FROM schedule_backfills
WHERE tenant_id = :tenant_id AND position_epoch = :position_epoch AND position_sequence = :position_sequence

-- name: count_open
-- Counts the backfills of a tenant that have not ended, at most `most`.
SELECT COUNT(*) AS used FROM (
    SELECT 1 AS one FROM schedule_backfills WHERE tenant_id = :tenant_id LIMIT :most
) AS counted

-- name: of_schedule
-- Returns the oldest backfills of a schedule.
SELECT {columns}
FROM schedule_backfills
WHERE tenant_id = :tenant_id AND schedule_id = :schedule_id
ORDER BY position_epoch, position_sequence
LIMIT :limit
