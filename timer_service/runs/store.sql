-- name: name_run
INSERT INTO runs (tenant_id, run_id, created_at, settled_at, position_epoch, position_sequence)
VALUES (:tenant_id, :run_id, :now, :now, :nowhere, :nowhere)
ON CONFLICT (tenant_id, run_id) DO NOTHING

-- name: find_run
SELECT tenant_id, run_id, status, digest, open_jobs, open_groups, evaluated, flaw_code, flaw_path, created_at, settled_at,
    sweep_at, position_epoch, position_sequence, correlation_id, causation_id, traceparent, tracestate
FROM runs
WHERE tenant_id = :tenant_id AND run_id = :run_id

-- name: put_run
UPDATE runs
SET status = :status, digest = :digest, open_jobs = :open_jobs, open_groups = :open_groups, evaluated = :evaluated,
    flaw_code = :flaw_code, flaw_path = :flaw_path, created_at = :created_at, settled_at = :settled_at,
    sweep_at = :sweep_at, position_epoch = :position_epoch, position_sequence = :position_sequence,
    correlation_id = :correlation_id, causation_id = :causation_id, traceparent = :traceparent, tracestate = :tracestate
WHERE tenant_id = :tenant_id AND run_id = :run_id

-- name: page
SELECT tenant_id, run_id, status, digest, open_jobs, open_groups, evaluated, flaw_code, flaw_path, created_at, settled_at,
    sweep_at, position_epoch, position_sequence, correlation_id, causation_id, traceparent, tracestate
FROM runs
WHERE tenant_id = :tenant_id AND {where} AND (created_at, run_id) < (:before_at, :before_id)
ORDER BY created_at DESC, run_id DESC
LIMIT :limit

-- name: add_job
INSERT INTO run_jobs (
    tenant_id, run_id, job_name, status, group_name, payload, outputs, reason, open_needs, open_groups, ready_at,
    settled_at, stale_after_ms, stale_at, position_epoch, position_sequence
) VALUES (
    :tenant_id, :run_id, :job_name, :status, :group_name, :payload, :outputs, :reason, :open_needs, :open_groups,
    :ready_at, :settled_at, :stale_after_ms, :stale_at, :position_epoch, :position_sequence
)

-- name: put_job
UPDATE run_jobs
SET status = :status, reason = :reason, open_needs = :open_needs, open_groups = :open_groups, ready_at = :ready_at,
    settled_at = :settled_at, stale_at = :stale_at, position_epoch = :position_epoch,
    position_sequence = :position_sequence
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name

-- name: put_outputs
UPDATE run_jobs
SET outputs = :outputs
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name

-- name: add_need
INSERT INTO run_needs (tenant_id, run_id, job_name, upstream_name, if_failed)
VALUES (:tenant_id, :run_id, :job_name, :upstream_name, :if_failed)

-- name: add_group_need
INSERT INTO run_group_needs (tenant_id, run_id, job_name, group_name, if_failed)
VALUES (:tenant_id, :run_id, :job_name, :group_name, :if_failed)

-- name: put_group
INSERT INTO run_groups (tenant_id, run_id, group_name, digest, resolved_at)
VALUES (:tenant_id, :run_id, :group_name, :digest, :resolved_at)
ON CONFLICT (tenant_id, run_id, group_name) DO UPDATE SET digest = excluded.digest, resolved_at = excluded.resolved_at

-- name: find_job
SELECT tenant_id, run_id, job_name, status, group_name, reason, open_needs, open_groups, ready_at, settled_at,
    stale_after_ms, stale_at, position_epoch, position_sequence
FROM run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name

-- name: downstream
SELECT tenant_id, run_id, job_name, upstream_name, if_failed
FROM run_needs
WHERE upstream_name = :job_name AND tenant_id = :tenant_id AND run_id = :run_id
ORDER BY if_failed, job_name

-- name: jobs_of_run
SELECT tenant_id, run_id, job_name, status, group_name, reason, open_needs, open_groups, ready_at, settled_at,
    stale_after_ms, stale_at, position_epoch, position_sequence
FROM run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id
ORDER BY job_name

-- name: needs_of_run
SELECT tenant_id, run_id, job_name, upstream_name, if_failed
FROM run_needs
WHERE tenant_id = :tenant_id AND run_id = :run_id
ORDER BY job_name, upstream_name

-- name: groups_of_run
SELECT tenant_id, run_id, group_name, digest, resolved_at
FROM run_groups
WHERE tenant_id = :tenant_id AND run_id = :run_id

-- name: group_needs_of_run
SELECT tenant_id, run_id, job_name, group_name, if_failed
FROM run_group_needs
WHERE tenant_id = :tenant_id AND run_id = :run_id

-- name: counts
SELECT tenant_id, run_id, status, COUNT(*) AS count
FROM run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id
GROUP BY tenant_id, run_id, status

-- name: given
SELECT tenant_id, run_id, job_name, group_name, ready_at, payload
FROM run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name

-- name: upstream_outputs
SELECT needs.tenant_id, needs.run_id, needs.job_name, needs.upstream_name, (
        SELECT jobs.outputs FROM run_jobs AS jobs
        WHERE jobs.tenant_id = needs.tenant_id AND jobs.run_id = needs.run_id AND jobs.job_name = needs.upstream_name
    ) AS outputs
FROM run_needs AS needs
WHERE needs.tenant_id = :tenant_id AND needs.run_id = :run_id AND needs.job_name = :job_name
ORDER BY needs.upstream_name

-- name: keep_early
INSERT INTO run_pending_commands (
    tenant_id, run_id, position_epoch, position_sequence, command_id, command_type, payload, correlation_id, traceparent,
    tracestate
) VALUES (
    :tenant_id, :run_id, :position_epoch, :position_sequence, :command_id, :command_type, :payload, :correlation_id,
    :traceparent, :tracestate
)
ON CONFLICT DO NOTHING

-- name: early
SELECT tenant_id, run_id, position_epoch, position_sequence, command_id, command_type, payload, correlation_id,
    traceparent, tracestate
FROM run_pending_commands
WHERE tenant_id = :tenant_id AND run_id = :run_id

-- name: forget_early
DELETE FROM run_pending_commands
WHERE tenant_id = :tenant_id AND run_id = :run_id AND position_epoch = :position_epoch
    AND position_sequence = :position_sequence

-- name: page_of_jobs
SELECT job_name, status, group_name, reason, ready_at, settled_at, outputs
FROM run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name > :after
ORDER BY job_name
LIMIT :limit

-- name: needs_of_job
SELECT job_name, upstream_name, if_failed
FROM run_needs
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name
ORDER BY upstream_name

-- name: group_needs_of_job
SELECT job_name, group_name, if_failed
FROM run_group_needs
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name
ORDER BY group_name
