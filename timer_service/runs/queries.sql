-- name: page
-- Returns the next started runs of a tenant, of all statuses or of one, newest first.
SELECT tenant_id, run_id, status, digest, open_jobs, failed_jobs, open_groups, row_count, stored_bytes, payload_bytes, pending_bytes, has_outputs, evaluated,
    flaw_code, flaw_path, created_at, settled_at, sweep_at, position_epoch, position_sequence, correlation_id, causation_id, traceparent, tracestate
FROM runs
WHERE tenant_id = :tenant_id AND digest IS NOT NULL {and_status} AND (created_at, run_id) < (:before_at, :before_id)
ORDER BY created_at DESC, run_id DESC
LIMIT :limit

-- name: page_of_jobs
-- Returns the next jobs of a run, ordered by name.
SELECT job_name, status, group_name, reason, ready_at, settled_at, outputs, outputs_bytes, (
        SELECT needs_size FROM run_edges AS edges
        WHERE edges.tenant_id = jobs.tenant_id AND edges.run_id = jobs.run_id AND edges.job_name = jobs.job_name
    ) AS needs_size
FROM run_jobs AS jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name >= :first
ORDER BY job_name
LIMIT :limit

-- name: needs
-- Returns the jobs that a job needs.
SELECT job_name, needs
FROM /* each of many */ run_edges
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name AND needs IS NOT NULL

-- name: group_needs_of_job
-- Returns the groups that a job needs, resolved or not.
SELECT job_name, group_name, if_failed
FROM run_group_needs
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name
ORDER BY group_name

-- name: counts
-- Returns the number of jobs by status of a run.
SELECT tenant_id, run_id, status, COUNT(*) AS count
FROM run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id
GROUP BY tenant_id, run_id, status

-- name: groups_of_run
-- Returns all groups of a run.
SELECT tenant_id, run_id, group_name, digest, resolved_at
FROM run_groups
WHERE tenant_id = :tenant_id AND run_id = :run_id
