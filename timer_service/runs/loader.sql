-- name: find_run
-- Returns a run.
SELECT tenant_id, run_id, status, digest, open_jobs, failed_jobs, open_groups, row_count, stored_bytes, payload_bytes, pending_bytes, has_outputs, evaluated,
    flaw_code, flaw_path, created_at, settled_at, sweep_at, position_epoch, position_sequence, correlation_id, causation_id, traceparent, tracestate
FROM /* each of many */ runs
WHERE tenant_id = :tenant_id AND run_id = :run_id

-- name: jobs_of_run
-- Returns all jobs of a run.
SELECT tenant_id, run_id, job_name, status, group_name, ready_at, open_needs, open_groups, settled_at, reason,
    stale_after_ms, stale_at, payload_bytes
FROM run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id
ORDER BY job_name

-- name: open_jobs_of_run
-- Returns the jobs of a run that have not ended.
SELECT tenant_id, run_id, job_name, status, group_name, ready_at, open_needs, open_groups, settled_at, reason,
    stale_after_ms, stale_at, payload_bytes
FROM run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id AND settled_at IS NULL
ORDER BY job_name

-- name: edges_of_run
-- Returns, for each job of a run that other jobs need, these jobs.
SELECT tenant_id, run_id, job_name, needed_by
FROM run_edges
WHERE tenant_id = :tenant_id AND run_id = :run_id AND needed_by IS NOT NULL
ORDER BY job_name

-- name: groups_of_run
-- Returns all groups of a run.
SELECT tenant_id, run_id, group_name, digest, resolved_at
FROM run_groups
WHERE tenant_id = :tenant_id AND run_id = :run_id

-- name: group_needs_of_run
-- Returns all edges from the groups of a run to the jobs that need them.
SELECT tenant_id, run_id, job_name, group_name, if_failed
FROM run_group_needs
WHERE tenant_id = :tenant_id AND run_id = :run_id

-- name: count_group_needs
-- Returns how many jobs need each group of a run.
SELECT tenant_id, run_id, group_name, COUNT(*) AS count
FROM /* each of many */ run_group_needs
WHERE tenant_id = :tenant_id AND run_id = :run_id
GROUP BY tenant_id, run_id, group_name

-- name: find_job
-- Returns a job.
SELECT tenant_id, run_id, job_name, status, group_name, ready_at, open_needs, open_groups, settled_at, reason,
    stale_after_ms, stale_at, payload_bytes
FROM /* each of many */ run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name

-- name: downstream
-- Returns the jobs that need a job.
SELECT tenant_id, run_id, job_name, needed_by
FROM /* each of many */ run_edges
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name AND needed_by IS NOT NULL

-- name: pending
-- Returns all pending commands of a run, in the order of the log.
SELECT tenant_id, run_id, position_epoch, position_sequence, command_id, command_type, payload, correlation_id,
    traceparent, tracestate
FROM run_pending_commands
WHERE tenant_id = :tenant_id AND run_id = :run_id
ORDER BY position_epoch, position_sequence
