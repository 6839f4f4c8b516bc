-- name: poll
-- Writes what a poll shows about a worker. If the clock was set back, the worker was seen first now.
INSERT INTO workflow_workers (tenant_id, worker_id, name, queue, types, slots, first_seen_at, seen_at)
VALUES (:tenant_id, :worker_id, :name, :queue, :types, :slots, :first_seen_at, :seen_at)
ON CONFLICT (tenant_id, worker_id) DO UPDATE
SET name = excluded.name, queue = excluded.queue, types = excluded.types, slots = excluded.slots,
    seen_at = excluded.seen_at,
    first_seen_at = CASE WHEN excluded.seen_at < workflow_workers.first_seen_at THEN excluded.seen_at
        ELSE workflow_workers.first_seen_at END

-- name: seen
-- Writes that a known worker has sent a request.
UPDATE workflow_workers SET seen_at = :now,
    first_seen_at = CASE WHEN first_seen_at > :now THEN :now ELSE first_seen_at END
WHERE tenant_id = :tenant_id AND worker_id = :worker_id

-- name: forget
-- Deletes the workers of a tenant beyond a number, those that were not seen for longest, up to a limit.
DELETE FROM workflow_workers
WHERE tenant_id = :tenant_id AND worker_id IN (
    SELECT worker_id FROM workflow_workers
    WHERE tenant_id = :tenant_id ORDER BY seen_at DESC LIMIT :limit OFFSET :most
)
