-- name: any_newer
-- Returns a row if there is a cancellation that is newer than a position.
SELECT 1 AS one FROM timer_cancellations
WHERE (position_epoch, position_sequence) > (:position_epoch, :position_sequence)
LIMIT 1

-- name: newer
-- Returns the cancellations of a tenant that are newer than a position. As a range of the primary key: with `tenant_id = ...`,
-- planners would read all cancellations of the tenant, or the newer ones of all tenants.
SELECT tenant_id, position_epoch, position_sequence, prefix
FROM timer_cancellations
WHERE (tenant_id, position_epoch, position_sequence) > (:tenant_id, :position_epoch, :position_sequence)
    AND tenant_id <= :tenant_id

-- name: find
-- Returns the key of a cancellation if it exists.
SELECT tenant_id, position_epoch, position_sequence
FROM /* each of many */ timer_cancellations
WHERE tenant_id = :tenant_id AND position_epoch = :position_epoch AND position_sequence = :position_sequence

-- name: add
-- Adds a cancellation, unless another instance has just added it.
INSERT INTO timer_cancellations ({columns}) VALUES ({values})
ON CONFLICT (tenant_id, position_epoch, position_sequence) DO NOTHING

-- name: next_available
-- Returns when the next page may be read.
SELECT MIN(available_at) AS at FROM timer_cancellations WHERE available_at IS NOT NULL

-- name: lock_due
-- Locks the cancellations whose next pages have been available longest, except those that another instance has locked.
SELECT {columns}
FROM timer_cancellations
WHERE available_at <= :now
ORDER BY available_at
LIMIT :limit
/* skip locked */

-- name: page
-- Returns the next timers of a tenant in the order of their ids, whatever their state.
SELECT service_call_id
FROM timer_schedules
WHERE tenant_id = :tenant_id AND service_call_id >= :from AND service_call_id < :end
ORDER BY service_call_id
LIMIT :limit

-- name: cancel
-- Cancels the pending and Failed timers of a page that are older than the cancellation. Locks them in the order of their keys.
UPDATE timer_schedules
SET state = 'Cancelled', cancelled_at = :now, available_at = NULL, lease_token = NULL,
    position_epoch = :position_epoch, position_sequence = :position_sequence
WHERE tenant_id = :tenant_id AND service_call_id >= :from AND service_call_id <= :to
    AND (state = 'Scheduled' OR state = 'Failed')
    AND (position_epoch, position_sequence) < (:position_epoch, :position_sequence)

-- name: save
-- Writes how far the passes of a cancellation are.
UPDATE timer_cancellations
SET next_call_id = :next_call_id, pass_number = :pass_number, cancelled_count = :cancelled_count,
    available_at = :available_at, finished_at = :finished_at
WHERE tenant_id = :tenant_id AND position_epoch = :position_epoch AND position_sequence = :position_sequence

-- name: delete_finished
-- Deletes cancellations that were finished before an instant, oldest first.
DELETE FROM timer_cancellations
WHERE (tenant_id, position_epoch, position_sequence) IN (
    SELECT tenant_id, position_epoch, position_sequence FROM timer_cancellations
    WHERE finished_at IS NOT NULL AND finished_at < :before
    ORDER BY finished_at LIMIT :limit
)
