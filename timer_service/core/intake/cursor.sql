-- name: create
-- Creates the row of the log, unless it exists.
INSERT INTO command_log (partition_number, log, epoch, sequence, stored_at, place, revision, reads_until)
VALUES (0, '', 0, 0, 0, '', 0, 0)
ON CONFLICT (partition_number) DO NOTHING

-- name: create_installation
-- Chooses the identity of the database, unless it has one.
INSERT INTO installation (one, database_id) VALUES (1, :database_id)
ON CONFLICT (one) DO NOTHING

-- name: find_installation
-- Returns the identity of the database.
SELECT database_id FROM installation

-- name: find
-- Returns how far the log was read, and by whom.
SELECT log, epoch, sequence, stored_at, place, revision, reader, reads_until FROM command_log

-- name: take
-- Makes a process the reader, if there is none, or its time is over or from a clock that was ahead.
UPDATE command_log
SET reader = :reader, reads_until = :until, revision = revision + 1
WHERE partition_number = 0 AND revision = :revision AND (reader IS NULL OR reader = :reader OR reads_until < :now OR reads_until > :latest)

-- name: move
-- Moves the cursor, if no other process has written the row since it was read.
UPDATE command_log
SET log = :log, epoch = :epoch, sequence = :sequence, stored_at = :stored_at, place = :place, reads_until = :until, revision = revision + 1
WHERE partition_number = 0 AND revision = :revision

-- name: release
-- Lets another process read at once.
UPDATE command_log SET reader = NULL, reads_until = 0, revision = revision + 1
WHERE partition_number = 0 AND reader = :reader
