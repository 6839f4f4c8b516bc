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

-- name: upstream_sizes
-- Returns the jobs that a job needs, and the bytes their outputs take in its JobReady (null without outputs).
SELECT needs.tenant_id, needs.run_id, needs.job_name, needs.upstream_name, (
        SELECT jobs.outputs_bytes FROM run_jobs AS jobs
        WHERE jobs.tenant_id = needs.tenant_id AND jobs.run_id = needs.run_id AND jobs.job_name = needs.upstream_name
    ) AS bytes
FROM run_needs AS needs
WHERE needs.tenant_id = :tenant_id AND needs.run_id = :run_id AND needs.job_name = :job_name
ORDER BY needs.upstream_name

-- name: outputs
-- Returns the outputs of a job.
SELECT tenant_id, run_id, job_name, outputs
FROM /* each of many */ run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name
