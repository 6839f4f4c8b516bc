-- name: defer
-- Inserts an announcement.
INSERT INTO run_announcements (tenant_id, available_at, run_id, job_name, deferred_at, caused_by, outputs_share)
VALUES (:tenant_id, :available_at, :run_id, :job_name, :deferred_at, :caused_by, :outputs_share)
ON CONFLICT (tenant_id, available_at, run_id, job_name) DO NOTHING

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
        SELECT MIN(available_at) FROM run_announcements WHERE tenant_id = waiting.tenant_id
    ) AS oldest
    FROM waiting
)
SELECT tenant_id, number, oldest FROM found
WHERE oldest <= :now OR tenant_id IS NULL OR number = :looked_at
LIMIT :limit

-- name: next_available
-- Returns when the next announcement may be tried.
SELECT MIN(available_at) AS at FROM run_announcements

-- name: due
-- Returns the oldest due announcements of a tenant.
SELECT tenant_id, available_at, run_id, job_name FROM run_announcements
WHERE tenant_id = :tenant_id AND available_at <= :now
ORDER BY available_at, run_id, job_name
LIMIT :limit

-- name: lock
-- Locks and returns an announcement. Skips one that another instance has locked.
SELECT tenant_id, available_at, run_id, job_name, deferred_at, caused_by, outputs_share FROM run_announcements
WHERE tenant_id = :tenant_id AND available_at = :available_at AND run_id = :run_id AND job_name = :job_name
/* skip locked */

-- name: delete
-- Deletes an announcement.
DELETE FROM run_announcements
WHERE tenant_id = :tenant_id AND available_at = :available_at AND run_id = :run_id AND job_name = :job_name

-- name: postpone
-- Lets an announcement wait.
UPDATE run_announcements SET available_at = :until, last_error = :error
WHERE tenant_id = :tenant_id AND available_at = :available_at AND run_id = :run_id AND job_name = :job_name
