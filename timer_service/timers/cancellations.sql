-- name: any_newer
-- Returns a row if there is a cancellation that is newer than a position.
SELECT 1 AS one FROM timer_cancellations
WHERE (position_epoch, position_sequence) > (:position_epoch, :position_sequence)
LIMIT 1

-- name: prefix_lengths
-- Returns the different lengths of the prefixes that a tenant has cancelled, in characters. One index step per length.
WITH RECURSIVE lengths (tenant_id, length) AS (
    SELECT tenant_id, length(prefix) FROM (
        SELECT tenant_id, prefix FROM timer_cancellations WHERE tenant_id = :tenant_id ORDER BY length(prefix) LIMIT 1
    ) AS shortest
    UNION ALL
    SELECT tenant_id, (
        SELECT length(prefix) FROM timer_cancellations
        WHERE tenant_id = :tenant_id AND length(prefix) > lengths.length
        ORDER BY length(prefix) LIMIT 1
    )
    FROM lengths WHERE length IS NOT NULL
)
SELECT tenant_id, length FROM lengths WHERE length IS NOT NULL

-- name: newest_of_prefix
-- Returns the newest cancellation of one prefix.
SELECT tenant_id, position_epoch, position_sequence, prefix
FROM /* each of many */ timer_cancellations
WHERE tenant_id = :tenant_id AND (position_epoch, position_sequence) = (
    SELECT position_epoch, position_sequence FROM timer_cancellations
    WHERE tenant_id = :tenant_id AND prefix = :prefix
    ORDER BY position_epoch DESC, position_sequence DESC
    LIMIT 1
)

-- name: find
-- Returns the key of a cancellation if it exists.
SELECT tenant_id, position_epoch, position_sequence
FROM /* each of many */ timer_cancellations
WHERE tenant_id = :tenant_id AND position_epoch = :position_epoch AND position_sequence = :position_sequence

-- name: add
-- Adds a cancellation, unless another instance has just added it.
INSERT INTO timer_cancellations ({columns}) VALUES ({values})
ON CONFLICT (tenant_id, position_epoch, position_sequence) DO NOTHING

-- name: page
-- Returns the next timers of a tenant in the order of their ids, whatever their state, and how many characters of large data
-- those have that `cancel` writes again.
SELECT service_call_id,
    CASE WHEN (state = 'Scheduled' OR state = 'Failed')
            AND (position_epoch, position_sequence) < (:position_epoch, :position_sequence)
        THEN COALESCE(large_data, 0) ELSE 0 END AS size
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
    WITH picked AS MATERIALIZED (
        SELECT tenant_id, position_epoch, position_sequence FROM timer_cancellations
        WHERE finished_at IS NOT NULL AND finished_at < :before
        ORDER BY finished_at LIMIT :limit
        /* skip locked */
    )
    SELECT tenant_id, position_epoch, position_sequence FROM picked
)
