-- name: begin
-- Counts that the handling of a command begins, unless the process that counted last has survived.
INSERT INTO suspects (epoch, sequence, begun) VALUES (:epoch, :sequence, 1)
ON CONFLICT (epoch, sequence) DO UPDATE SET begun = suspects.begun + :more
RETURNING begun

-- name: end
-- Forgets a command that did not end the process.
DELETE FROM suspects WHERE epoch = :epoch AND sequence = :sequence
