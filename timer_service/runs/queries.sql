-- name: page
-- The next runs of a tenant, newest first.
SELECT tenant_id, run_id, status, digest, open_jobs, failed_jobs, open_groups, pending_bytes, has_outputs, evaluated, flaw_code, flaw_path,
    created_at, settled_at, sweep_at, position_epoch, position_sequence, since_epoch, since_sequence, correlation_id, causation_id, traceparent,
    tracestate
FROM runs
WHERE tenant_id = :tenant_id AND {where} AND (created_at, run_id) < (:before_at, :before_id)
ORDER BY created_at DESC, run_id DESC
LIMIT :limit

-- name: page_of_jobs
-- The next jobs of a run.
SELECT job_name, status, group_name, reason, ready_at, settled_at, outputs, outputs_bytes
FROM run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name >= :first
ORDER BY job_name
LIMIT :limit

-- name: needs_of_job
-- The next jobs that one job needs.
SELECT job_name, upstream_name, if_failed
FROM run_needs
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name
    AND upstream_name > :after
ORDER BY upstream_name
LIMIT :limit

-- name: group_needs_of_job
-- The groups that one job needs.
SELECT job_name, group_name, if_failed
FROM run_group_needs
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name
ORDER BY group_name

-- name: counts
-- How many jobs of a run have each status.
SELECT tenant_id, run_id, status, COUNT(*) AS count
FROM run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id
GROUP BY tenant_id, run_id, status

-- name: groups_of_run
-- All groups of a run.
SELECT tenant_id, run_id, group_name, digest, resolved_at
FROM run_groups
WHERE tenant_id = :tenant_id AND run_id = :run_id
