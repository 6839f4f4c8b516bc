-- name: find
-- Returns the schedule with a key, tombstones included.
SELECT {columns}
FROM /* each of many */ schedules
WHERE tenant_id = :tenant_id AND schedule_id = :schedule_id

-- name: insert
-- Inserts a schedule.
INSERT INTO schedules ({columns}) VALUES ({values})

-- name: update
-- Writes a locked schedule.
UPDATE schedules SET {updates} WHERE tenant_id = :tenant_id AND schedule_id = :schedule_id

-- name: advance
-- Writes what a pass can change of a locked schedule: its cursor, its next slot, its counts, its error and its end.
UPDATE schedules SET {advances} WHERE tenant_id = :tenant_id AND schedule_id = :schedule_id

-- name: load_data
-- Returns the data of a schedule.
SELECT tenant_id, schedule_id, data
FROM /* each of many */ schedules
WHERE tenant_id = :tenant_id AND schedule_id = :schedule_id

-- name: page
-- Returns the next schedules of a tenant in one status, and with a topic if wanted, after a cursor, in order of their ids.
SELECT {columns}
FROM schedules
WHERE tenant_id = :tenant_id AND {where} AND schedule_id > :after
ORDER BY schedule_id
LIMIT :limit

-- name: page_of_zones
-- Returns the next schedules after a key, in order of their keys, with the rules from which the next slots were computed.
SELECT tenant_id, schedule_id, zone, zone_rules
FROM schedules
WHERE (tenant_id, schedule_id) > (:tenant_id, :schedule_id)
ORDER BY tenant_id, schedule_id
LIMIT :limit

-- name: lock_active
-- Locks and returns the active schedule with a key, unless it is locked.
SELECT {columns}
FROM /* each of many */ schedules
WHERE tenant_id = :tenant_id AND schedule_id = :schedule_id AND available_at IS NOT NULL
/* skip locked */

-- name: count_live
-- Counts the active and paused schedules of a tenant, at most `most`.
SELECT COUNT(*) AS used FROM (
    SELECT 1 AS one FROM schedules WHERE tenant_id = :tenant_id AND status IN ('active', 'paused') LIMIT :most
) AS counted

-- name: delete_settled
-- Deletes ended schedules and tombstones that ended and were confirmed before an instant, oldest first.
DELETE FROM schedules
WHERE (tenant_id, schedule_id) IN (
    WITH picked AS MATERIALIZED (  -- locked, so that a schedule that a command has just put again is not deleted
        SELECT tenant_id, schedule_id FROM schedules
        WHERE ended_at IS NOT NULL AND COALESCE(confirmed_at, ended_at) < :before
        ORDER BY COALESCE(confirmed_at, ended_at) LIMIT :limit
        /* skip locked */
    )
    SELECT tenant_id, schedule_id FROM picked
)
