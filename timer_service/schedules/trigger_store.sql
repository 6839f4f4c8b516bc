-- name: find
-- Returns the position of a TriggerSchedule if it was handled before.
SELECT position_epoch, position_sequence
FROM /* each of many */ handled_triggers
WHERE position_epoch = :epoch AND position_sequence = :sequence

-- name: add
-- Inserts the position of a TriggerSchedule, unless another instance has just inserted it.
INSERT INTO handled_triggers (position_epoch, position_sequence, handled_at) VALUES (:epoch, :sequence, :now)
ON CONFLICT (position_epoch, position_sequence) DO NOTHING

-- name: delete_old
-- Deletes the positions that were inserted before an instant, oldest first.
DELETE FROM handled_triggers
WHERE (position_epoch, position_sequence) IN (
    WITH picked AS MATERIALIZED (
        SELECT position_epoch, position_sequence FROM handled_triggers
        WHERE handled_at < :before ORDER BY handled_at LIMIT :limit
        /* skip locked */
    )
    SELECT position_epoch, position_sequence FROM picked
)
