-- name: find
-- The parts of the history, in order of their epochs.
SELECT epoch, created, first_sequence, last_sequence, last_stored_at FROM command_streams ORDER BY epoch

-- name: add
-- Adds a part, unless another instance has added it.
INSERT INTO command_streams (epoch, created, first_sequence, last_sequence, last_stored_at)
VALUES (:epoch, :created, :first_sequence, :last_sequence, :last_stored_at)
ON CONFLICT (epoch) DO NOTHING

-- name: rename
-- Writes the creation time that the broker reports for a stream that has moved.
UPDATE command_streams SET created = :created WHERE epoch = :epoch

-- name: advance
-- Writes the newest handled command of a part. Returns the epoch of the newest part if the part has changed.
UPDATE command_streams SET last_sequence = :sequence, last_stored_at = :stored_at
WHERE epoch = :epoch AND last_sequence < :sequence
RETURNING (SELECT MAX(epoch) FROM command_streams) AS epoch

-- name: newest_epoch
-- The epoch of the newest part; NULL if there is none.
SELECT MAX(epoch) AS epoch FROM command_streams
