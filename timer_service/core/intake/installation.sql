-- name: create
-- Gives the database its identifier, unless it has one.
INSERT INTO installation (one, database_id) VALUES (1, :database_id) ON CONFLICT (one) DO NOTHING

-- name: find
-- The installation.
SELECT database_id, replay_since, replay_id, unsettled_since FROM installation

-- name: set_replay
-- Sets the instant from which commands are read again.
UPDATE installation SET replay_since = :since, replay_id = :id

-- name: set_unsettled_since
-- Sets when the broker stored the oldest command that is not settled.
UPDATE installation SET unsettled_since = :at

-- name: find_exempt
-- The position up to which no limit refuses a command.
SELECT exempt_epoch, exempt_sequence FROM installation

-- name: raise_exempt
-- Sets this position, unless it is higher.
UPDATE installation SET exempt_epoch = :epoch, exempt_sequence = :sequence
WHERE (exempt_epoch, exempt_sequence) < (:epoch, :sequence)
