-- name: write
-- Writes the row of the database itself without a change. If the row is missing, this creates it.
INSERT INTO installation (one, database_id) VALUES (1, :database_id)
ON CONFLICT (one) DO UPDATE SET database_id = installation.database_id
