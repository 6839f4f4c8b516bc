-- name: poll
-- Writes what a poll shows about a worker.
INSERT INTO workflow_workers (tenant_id, worker_id, name, queue, types, slots, first_seen_at, seen_at)
VALUES (:tenant_id, :worker_id, :name, :queue, :types, :slots, :now, :now)
ON CONFLICT (tenant_id, worker_id) DO UPDATE
SET name = excluded.name, queue = excluded.queue, types = excluded.types, slots = excluded.slots,
    seen_at = excluded.seen_at
WHERE excluded.seen_at >= workflow_workers.first_seen_at

-- name: seen
-- Writes that a known worker has sent a request.
UPDATE workflow_workers SET seen_at = :now
WHERE tenant_id = :tenant_id AND worker_id = :worker_id AND first_seen_at <= :now
