-- name: add
-- Adds a backfill.
INSERT INTO schedule_backfills ({columns}) VALUES ({values})

-- name: next_available
-- Returns when the next portion may fire.
SELECT MIN(available_at) AS at FROM schedule_backfills

-- name: due_tenants
-- Like `due_tenants` of `lease.sql`. Ordered like the whole index, so that planners use it also for the oldest row.
WITH RECURSIVE unfinished (tenant_id, number) AS (
    SELECT MIN(tenant_id), 1 FROM schedule_backfills WHERE tenant_id > :after
    UNION ALL
    SELECT (
        SELECT MIN(tenant_id) FROM schedule_backfills WHERE tenant_id > unfinished.tenant_id
    ), number + 1
    FROM unfinished WHERE tenant_id IS NOT NULL AND number < :looked_at
)
SELECT tenant_id, number, oldest FROM (
    SELECT tenant_id, number, (
        SELECT available_at FROM schedule_backfills
        WHERE tenant_id = unfinished.tenant_id
        ORDER BY available_at, position_epoch, position_sequence
        LIMIT 1
    ) AS oldest
    FROM unfinished
) AS found
WHERE oldest <= :now OR tenant_id IS NULL OR number = :looked_at
LIMIT :limit

-- name: lock_due
-- Locks the oldest due backfill of a tenant, and returns it without its data. If another instance has locked it, locks
-- none.
SELECT {columns}
FROM schedule_backfills
WHERE COALESCE(available_at <= :now, FALSE)  -- in this form, planners use no index for it
    AND tenant_id = :tenant_id AND (position_epoch, position_sequence) = (
    SELECT position_epoch, position_sequence FROM schedule_backfills
    WHERE tenant_id = :tenant_id
    ORDER BY available_at, position_epoch, position_sequence
    LIMIT 1
)
/* skip locked */

-- name: find_deletes
-- Returns the position of the last DeleteSchedule on a schedule.
SELECT tenant_id, schedule_id, deleted_epoch, deleted_sequence
FROM /* each of many */ schedules
WHERE tenant_id = :tenant_id AND schedule_id = :schedule_id

-- name: load_data
-- Returns the data of a backfill.
SELECT tenant_id, position_epoch, position_sequence, data
FROM /* each of many */ schedule_backfills
WHERE tenant_id = :tenant_id AND position_epoch = :position_epoch AND position_sequence = :position_sequence

-- name: save
-- Writes how far a locked backfill is.
UPDATE schedule_backfills
SET after_at = :after_at, fired_count = :fired_count, skipped_count = :skipped_count, last_error = NULL
WHERE tenant_id = :tenant_id AND position_epoch = :position_epoch AND position_sequence = :position_sequence

-- name: postpone
-- Lets a locked backfill wait. Nothing of its row is read.
UPDATE schedule_backfills SET available_at = :retry_at, last_error = :error
WHERE tenant_id = :tenant_id AND position_epoch = :position_epoch AND position_sequence = :position_sequence

-- name: delete
-- Deletes a locked backfill that has ended.
DELETE FROM schedule_backfills
WHERE tenant_id = :tenant_id AND position_epoch = :position_epoch AND position_sequence = :position_sequence

-- name: of_schedule
-- Returns the oldest backfills of a schedule, without their data.
SELECT {columns}
FROM schedule_backfills
WHERE tenant_id = :tenant_id AND schedule_id = :schedule_id
ORDER BY position_epoch, position_sequence
LIMIT :limit
