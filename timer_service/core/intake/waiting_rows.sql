-- name: tenants
-- Returns for each tenant with waiting commands how many it has, their size, and when the first of them may be applied.
SELECT tenant_id, SUM(number_of_commands - done) AS number, SUM(size) AS size, MAX(available_at) AS available_at
FROM waiting_commands GROUP BY tenant_id

-- name: add
-- Stores commands of one tenant that follow each other.
INSERT INTO waiting_commands
    (tenant_id, epoch, first_sequence, number_of_commands, size, commands, available_at, attempt)
VALUES (:tenant_id, :epoch, :first_sequence, :number, :size, :commands, 0, 0)

-- name: first
-- Returns the oldest row of a tenant.
SELECT tenant_id, epoch, first_sequence, number_of_commands, done, size, commands, available_at, attempt, tried, deaths
FROM /* each of many */ waiting_commands
WHERE tenant_id = :tenant_id AND (epoch, first_sequence) = (
    SELECT epoch, first_sequence FROM waiting_commands WHERE tenant_id = :tenant_id ORDER BY epoch, first_sequence LIMIT 1
)

-- name: advance
-- Records that the first commands of a row are applied.
UPDATE waiting_commands SET done = :done, available_at = 0, attempt = 0, last_error = NULL, tried = 0, deaths = 0
WHERE tenant_id = :tenant_id AND epoch = :epoch AND first_sequence = :first_sequence

-- name: delete
-- Deletes a row whose commands are all applied.
DELETE FROM waiting_commands WHERE tenant_id = :tenant_id AND epoch = :epoch AND first_sequence = :first_sequence

-- name: postpone
-- Records that the next command of a row could not be applied.
UPDATE waiting_commands SET available_at = :available_at, attempt = :attempt, last_error = :last_error, tried = 0, deaths = 0
WHERE tenant_id = :tenant_id AND epoch = :epoch AND first_sequence = :first_sequence

-- name: try
-- Marks commands that are about to be applied after a crash.
UPDATE waiting_commands SET tried = :tried, deaths = :deaths
WHERE tenant_id = :tenant_id AND epoch = :epoch AND first_sequence = :first_sequence

-- name: find_tenant
-- Returns a tenant if it has waiting commands.
SELECT tenant_id FROM waiting_commands WHERE tenant_id = :tenant_id LIMIT 1

-- name: ready_before
-- Returns a row if commands up to a position wait that may be applied now.
SELECT 1 AS one FROM waiting_commands
WHERE (epoch, first_sequence) <= (:epoch, :sequence) AND NOT EXISTS (
    SELECT 1 FROM waiting_commands AS older
    WHERE older.tenant_id = waiting_commands.tenant_id AND older.available_at > 0
        AND older.available_at > :now AND older.available_at <= :latest
)
LIMIT 1
