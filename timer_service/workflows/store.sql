-- name: find
-- Returns the workflow with a key, also if it is not started.
SELECT {columns}
FROM /* each of many */ workflows
WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id

-- name: find_use
-- Counts the workflows that have a concurrency key and those that wait for it, each up to a limit. Returns the last place.
SELECT (
        SELECT COUNT(*) FROM (
            SELECT 1 AS one FROM workflows
            WHERE tenant_id = :tenant_id AND concurrency_key = :concurrency_key AND key_place IS NULL AND ended_at IS NULL
            LIMIT :most
        ) AS counted
    ) AS started,
    (
        SELECT COUNT(*) FROM (
            SELECT 1 AS one FROM workflows
            WHERE tenant_id = :tenant_id AND concurrency_key = :concurrency_key AND key_place IS NOT NULL
            LIMIT :most
        ) AS counted
    ) AS queued,
    (
        SELECT MAX(key_place) FROM workflows
        WHERE tenant_id = :tenant_id AND concurrency_key = :concurrency_key AND key_place IS NOT NULL
    ) AS last_place,
    CAST(:number AS INTEGER) AS number

-- name: first_queued
-- Returns the first workflows that wait for a concurrency key, in order.
SELECT tenant_id, workflow_id, concurrency_key, concurrency_limit, when_busy
FROM workflows
WHERE tenant_id = :tenant_id AND concurrency_key = :concurrency_key AND key_place IS NOT NULL
ORDER BY key_place
LIMIT :limit

-- name: oldest_started
-- Returns the oldest workflows that have a concurrency key.
SELECT tenant_id, workflow_id, concurrency_key
FROM workflows
WHERE tenant_id = :tenant_id AND concurrency_key = :concurrency_key AND key_place IS NULL AND ended_at IS NULL
ORDER BY created_at, workflow_id
LIMIT :limit

-- name: looked_at_key
-- Writes that the concurrency key of a locked workflow was looked at.
UPDATE workflows SET key_due_at = NULL WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id

-- name: insert
-- Inserts a workflow, unless another instance has just inserted it.
INSERT INTO workflows ({columns}) VALUES ({values})
ON CONFLICT DO NOTHING

-- name: update
-- Writes a locked workflow.
UPDATE workflows SET {updates} WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id

-- name: advance
-- Writes what a worker's request can change of a locked workflow that goes on. Without the columns of most indices: SQLite writes
-- each index that has a column of the statement.
UPDATE workflows SET {advances} WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id

-- name: finish
-- Writes what a worker's request or the deadline can change of a locked workflow that ends.
UPDATE workflows SET {finishes} WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id

-- name: write_data
-- Writes the texts of a workflow. The input stays.
INSERT INTO workflow_data (tenant_id, workflow_id, input, result, error)
VALUES (:tenant_id, :workflow_id, :input, :result, :error)
ON CONFLICT (tenant_id, workflow_id) DO UPDATE SET
    input = COALESCE(excluded.input, workflow_data.input), result = excluded.result, error = excluded.error

-- name: find_data
-- Returns the texts of a workflow that has any.
SELECT tenant_id, workflow_id, input, result, error
FROM /* each of many */ workflow_data
WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id

-- name: postpone
-- Lets an available workflow wait that could not be sent to a worker.
UPDATE workflows SET available_at = :until, counted_from = :now, last_error = :error
WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id AND COALESCE(available_at <= :now, FALSE)

-- name: count_open
-- Counts the open workflows of a tenant, at most `most`.
SELECT COUNT(*) AS used FROM (
    SELECT 1 AS one FROM workflows WHERE tenant_id = :tenant_id AND ended_at IS NULL LIMIT :most
) AS counted

-- name: sum_stored
-- Adds up the bytes of the large workflows of a tenant. Each row has one at least, so `most` rows have `most` or more.
SELECT CAST(COALESCE(SUM(
    input_bytes + effect_bytes + message_bytes + CASE WHEN effects > 10 THEN 1000 * (effects - 10) ELSE 0 END
), 0) AS BIGINT) AS used FROM (
    SELECT input_bytes, effect_bytes, message_bytes, effects FROM workflows
    WHERE tenant_id = :tenant_id AND (input_bytes + effect_bytes + message_bytes > 1000 OR effects > 10) LIMIT :most
) AS counted
