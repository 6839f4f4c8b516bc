-- name: add
-- Adds a cancellation.
INSERT INTO timer_cancellations ({columns}) VALUES ({values})

-- name: page
-- Returns the next timers of a tenant in the order of their ids, whatever their state.
SELECT service_call_id FROM timer_schedules
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
-- Writes how far the pass of a cancellation is.
UPDATE timer_cancellations
SET next_call_id = :next_call_id, cancelled_count = :cancelled_count, last_error = NULL
WHERE tenant_id = :tenant_id AND position_epoch = :position_epoch AND position_sequence = :position_sequence

-- name: delete
-- Deletes a cancellation.
DELETE FROM timer_cancellations
WHERE tenant_id = :tenant_id AND position_epoch = :position_epoch AND position_sequence = :position_sequence
