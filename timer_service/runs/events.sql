-- name: counts
-- Returns the number of jobs by status of a run.
SELECT tenant_id, run_id, status, COUNT(*) AS count
FROM run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id
GROUP BY tenant_id, run_id, status
