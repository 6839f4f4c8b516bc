-- name: page
-- Returns the next workflows of a tenant before a place, down to another place, newest first. `where` has an index of its own.
SELECT {columns}
FROM workflows
WHERE tenant_id = :tenant_id AND {where} AND (created_at, workflow_id) < (:created_at, :workflow_id)
    AND (created_at, workflow_id) >= (:end_at, :end_id)
    AND (:status = '' OR status = :status) AND (:type = '' OR type = :type)
ORDER BY created_at DESC, workflow_id DESC
LIMIT :limit

-- name: page_end
-- Returns the place of the last workflow that such a page may look at, if there are so many.
SELECT created_at, workflow_id
FROM workflows
WHERE tenant_id = :tenant_id AND {where} AND (created_at, workflow_id) < (:created_at, :workflow_id)
ORDER BY created_at DESC, workflow_id DESC
LIMIT 1 OFFSET :skipped

-- name: count_open
-- Counts the open workflows of a tenant by status, at most the limit together.
SELECT status, COUNT(*) AS count FROM (
    SELECT status FROM workflows WHERE tenant_id = :tenant_id AND ended_at IS NULL LIMIT :limit
) AS counted
GROUP BY status

-- name: count_ended
-- Counts the workflows of a tenant that ended in one way, at most the limit.
SELECT COUNT(*) AS count FROM (
    SELECT 1 AS one FROM workflows
    WHERE tenant_id = :tenant_id AND status = '{status}' AND ended_at IS NOT NULL AND type IS NOT NULL
    LIMIT :limit
) AS counted

-- name: behind
-- Returns the workflow that is directly before a queued one: in the queue, or the oldest that has the concurrency key.
SELECT COALESCE(
        (
            SELECT workflow_id FROM workflows
            WHERE tenant_id = :tenant_id AND concurrency_key = :concurrency_key
                AND key_place IS NOT NULL AND key_place < :place
            ORDER BY key_place DESC
            LIMIT 1
        ),
        (
            SELECT workflow_id FROM workflows
            WHERE tenant_id = :tenant_id AND concurrency_key = :concurrency_key AND key_place IS NULL AND ended_at IS NULL
            ORDER BY created_at, workflow_id
            LIMIT 1
        )
    ) AS workflow_id,
    CAST(:number AS INTEGER) AS number

-- name: page_workers
-- Returns the next workers of a tenant after an id.
SELECT worker_id, name, queue, types, slots, first_seen_at, seen_at
FROM workflow_workers
WHERE tenant_id = :tenant_id AND worker_id > :worker_id
ORDER BY worker_id
LIMIT :limit

-- name: types_of_queue
-- Returns the types for which the workers of a queue ask that were seen since an instant, newest first.
SELECT types FROM workflow_workers
WHERE tenant_id = :tenant_id AND queue = :queue AND seen_at > :since
ORDER BY seen_at DESC
LIMIT :limit
