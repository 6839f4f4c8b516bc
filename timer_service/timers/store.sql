-- name: find
-- Returns the timer with a key.
SELECT {columns}
FROM /* each of many */ timer_schedules
WHERE tenant_id = :tenant_id AND service_call_id = :service_call_id

-- name: put
-- Inserts or replaces a timer, and ends its claim and its expiry. Skips a Reached timer.
INSERT INTO timer_schedules ({columns}) VALUES ({values})
ON CONFLICT (tenant_id, service_call_id) DO UPDATE SET {updates}, lease_token = NULL, expired_at = NULL
WHERE timer_schedules.state <> 'Reached'

-- name: add
-- Inserts a timer unless there is one with its key. Returns the key of an inserted timer.
INSERT INTO timer_schedules ({columns}) VALUES ({values})
ON CONFLICT (tenant_id, service_call_id) DO NOTHING
RETURNING tenant_id, service_call_id

-- name: move
-- Writes the position of a ScheduleTimer that changes nothing else. The claim of the timer stays.
UPDATE timer_schedules
SET position_epoch = :position_epoch, position_sequence = :position_sequence
WHERE tenant_id = :tenant_id AND service_call_id = :service_call_id

-- name: page_of_scheduled
-- Returns the next Scheduled timers of a tenant, with a topic if wanted, after a place, in order of due time.
SELECT {columns}
FROM timer_schedules
WHERE tenant_id = :tenant_id AND {where} AND due_at < :end AND (due_at, service_call_id) > (:due_at, :service_call_id)
ORDER BY due_at, service_call_id
LIMIT :limit

-- name: page_of_others
-- Returns the next timers of a tenant in another state, with a topic if wanted, before a place, the latest due time first.
SELECT {columns}
FROM timer_schedules
WHERE tenant_id = :tenant_id AND {where} AND due_at >= :end AND (due_at, service_call_id) < (:due_at, :service_call_id)
ORDER BY due_at DESC, service_call_id DESC
LIMIT :limit

-- name: count
-- Returns the number of timers of a tenant in one state, at most the limit.
SELECT COUNT(*) AS count FROM (
    SELECT 1 AS one FROM timer_schedules
    WHERE tenant_id = :tenant_id AND {where} AND due_at < :due_before
    LIMIT :limit
) AS counted

-- name: oldest_due
-- Returns the earliest due time of a tenant's Scheduled timers.
SELECT MIN(due_at) AS due_at FROM timer_schedules WHERE tenant_id = :tenant_id AND available_at IS NOT NULL

-- name: delete_settled
-- Deletes timers that were settled before an instant, oldest first. Returns where their long texts are.
DELETE FROM timer_schedules
WHERE (tenant_id, service_call_id) IN (
    WITH picked AS MATERIALIZED (  -- locked, so that a timer that a command has just scheduled again is not deleted
        SELECT tenant_id, service_call_id FROM timer_schedules
        WHERE COALESCE(reached_at, cancelled_at, expired_at) < :before
        ORDER BY COALESCE(reached_at, cancelled_at, expired_at) LIMIT :limit
        /* skip locked */
    )
    SELECT tenant_id, service_call_id FROM picked
)
RETURNING tenant_id, event_id, large_data

-- name: count_pending
-- Counts the timers of a tenant that fire later, at most `most`. The order makes PostgreSQL use the index of the tenant.
SELECT COUNT(*) AS used FROM (
    SELECT 1 AS one FROM timer_schedules
    WHERE tenant_id = :tenant_id AND available_at IS NOT NULL AND due_at > :now
    ORDER BY due_at, service_call_id LIMIT :most
) AS counted

-- name: sum_large_data
-- Adds up the characters of the large data of a tenant. Each row has one at least, so `most` rows have `most` or more.
SELECT CAST(COALESCE(SUM(large_data), 0) AS BIGINT) AS used FROM (
    SELECT large_data FROM timer_schedules WHERE tenant_id = :tenant_id AND large_data IS NOT NULL LIMIT :most
) AS counted
