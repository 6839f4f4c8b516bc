-- name: find_run
-- Returns a run.
SELECT {columns}
FROM /* each of many */ runs
WHERE tenant_id = :tenant_id AND run_id = :run_id

-- name: find_jobs
-- Returns a job, all jobs of a run, or those that have not ended.
SELECT {columns}
FROM {each} run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id {which}

-- name: edges_of_run
-- Returns, for each job of a run that other jobs need, these jobs.
SELECT tenant_id, run_id, job_name, needed_by
FROM run_edges
WHERE tenant_id = :tenant_id AND run_id = :run_id AND needed_by IS NOT NULL
ORDER BY job_name

-- name: downstream
-- Returns the jobs that need a job.
SELECT tenant_id, run_id, job_name, needed_by
FROM /* each of many */ run_edges
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name AND needed_by IS NOT NULL

-- name: needs
-- Returns the jobs that a job needs.
SELECT tenant_id, run_id, job_name, needs
FROM /* each of many */ run_edges
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name AND needs IS NOT NULL

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

-- name: pending
-- Returns all pending commands of a run, in the order of the log.
SELECT tenant_id, run_id, position_epoch, position_sequence, command_id, command_type, payload, correlation_id,
    traceparent, tracestate
FROM run_pending_commands
WHERE tenant_id = :tenant_id AND run_id = :run_id
ORDER BY position_epoch, position_sequence

-- name: count_by_status
-- Returns the number of jobs by status of a run.
SELECT tenant_id, run_id, status, COUNT(*) AS count
FROM run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id
GROUP BY tenant_id, run_id, status

-- name: find_value
-- Returns the value of a column of a job, if it has one.
SELECT tenant_id, run_id, job_name, {column} AS value
FROM /* each of many */ run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name AND {column} IS NOT NULL
