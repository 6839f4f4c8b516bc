-- name: counts
-- Returns the number of jobs by status of a run.
SELECT tenant_id, run_id, status, COUNT(*) AS count
FROM run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id
GROUP BY tenant_id, run_id, status

-- name: payload
-- Returns the payload of a job.
SELECT tenant_id, run_id, job_name, payload
FROM /* each of many */ run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name

-- name: needs
-- Returns the jobs that a job needs.
SELECT tenant_id, run_id, job_name, needs
FROM /* each of many */ run_edges
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name AND needs IS NOT NULL

-- name: outputs_size
-- Returns the bytes that the outputs of a job take in a JobReady, or no row if it has none.
SELECT tenant_id, run_id, job_name, outputs_bytes
FROM /* each of many */ run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name AND outputs_bytes IS NOT NULL

-- name: outputs
-- Returns the outputs of a job.
SELECT tenant_id, run_id, job_name, outputs
FROM /* each of many */ run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name
