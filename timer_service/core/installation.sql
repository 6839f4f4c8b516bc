-- name: create
-- Gives the database its identifier, unless it has one.
INSERT INTO installation (one, database_id) VALUES (1, :database_id) ON CONFLICT (one) DO NOTHING

-- name: find
-- The installation.
SELECT database_id, replay_since FROM installation

-- name: set_replay_since
-- Sets the instant from which commands are read again.
UPDATE installation SET replay_since = :at
