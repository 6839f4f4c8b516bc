-- name: defer
-- Inserts an announcement.
INSERT INTO run_announcements (tenant_id, deferred_at, run_id, job_name, caused_by, outputs_share)
VALUES (:tenant_id, :deferred_at, :run_id, :job_name, :caused_by, :outputs_share)
ON CONFLICT (tenant_id, deferred_at, run_id, job_name) DO NOTHING

-- name: tenants
-- Like `due_tenants` of `lease.sql`: the next tenants with announcements.
WITH RECURSIVE waiting (tenant_id, number) AS (
    SELECT MIN(tenant_id), 1 FROM run_announcements WHERE tenant_id > :after
    UNION ALL
    SELECT (SELECT MIN(tenant_id) FROM run_announcements WHERE tenant_id > waiting.tenant_id), number + 1
    FROM waiting WHERE tenant_id IS NOT NULL AND number < :looked_at
),
found AS MATERIALIZED (
    SELECT tenant_id, number, (
        SELECT MIN(deferred_at) FROM run_announcements WHERE tenant_id = waiting.tenant_id
    ) AS oldest
    FROM waiting
)
SELECT tenant_id, number, oldest FROM found
WHERE oldest <= :now OR tenant_id IS NULL OR number = :looked_at
LIMIT :limit

-- name: lock_oldest
-- Locks and returns the oldest announcements of a tenant. Skips those that another instance has locked.
SELECT tenant_id, deferred_at, run_id, job_name, caused_by, outputs_share
FROM run_announcements
WHERE tenant_id = :tenant_id
ORDER BY deferred_at, run_id, job_name
LIMIT :limit
/* skip locked */

-- name: find
-- Finds an announcement by its key.
SELECT tenant_id, deferred_at, run_id, job_name FROM /* each of many */ run_announcements
WHERE tenant_id = :tenant_id AND deferred_at = :deferred_at AND run_id = :run_id AND job_name = :job_name

-- name: latest
-- Returns when the last announcement of a tenant was deferred, or null.
SELECT MAX(deferred_at) AS at FROM run_announcements WHERE tenant_id = :tenant_id

-- name: delete
-- Deletes an announcement.
DELETE FROM run_announcements
WHERE tenant_id = :tenant_id AND deferred_at = :deferred_at AND run_id = :run_id AND job_name = :job_name

-- name: postpone
-- Puts an announcement behind others.
UPDATE run_announcements SET deferred_at = :until
WHERE tenant_id = :tenant_id AND deferred_at = :deferred_at AND run_id = :run_id AND job_name = :job_name
