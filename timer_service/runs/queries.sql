-- name: page
-- Returns the next started runs of a tenant in one status, or of those that have ended, newest first.
SELECT {columns}
FROM runs
WHERE tenant_id = :tenant_id AND digest IS NOT NULL AND {where} AND (created_at, run_id) < (:before_at, :before_id)
ORDER BY created_at DESC, run_id DESC
LIMIT :limit

-- name: page_of_jobs
-- Returns the next jobs of a run, ordered by name.
SELECT job_name, status, group_name, reason, ready_at, settled_at, always, attempt, outputs, outputs_bytes
FROM run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name >= :first
ORDER BY job_name
LIMIT :limit

-- name: group_needs_of_job
-- Returns the groups that a job needs, resolved or not.
SELECT job_name, group_name, if_failed
FROM run_group_needs
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name
ORDER BY group_name
