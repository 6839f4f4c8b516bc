-- name: upsert_run
-- Inserts a run, or updates a locked one.
INSERT INTO runs ({columns}) VALUES ({values}) ON CONFLICT (tenant_id, run_id) DO UPDATE SET {updates}

-- name: delete_run
-- Deletes a run that was not started, and that holds no pending commands any more.
DELETE FROM runs WHERE tenant_id = :tenant_id AND run_id = :run_id

-- name: insert_job
-- Inserts a job.
INSERT INTO run_jobs ({columns}) VALUES ({values})

-- name: update_jobs
-- Updates jobs of a locked run that change in the same way: one report can make 10,000 ready.
UPDATE run_jobs SET {updates}
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name {which}

-- name: update_outputs
-- Updates the outputs of a job.
UPDATE run_jobs
SET outputs = :outputs, outputs_bytes = :outputs_bytes
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name

-- name: clear_outputs
-- Clears the outputs of the jobs of a run that run again.
UPDATE run_jobs
SET outputs = NULL, outputs_bytes = NULL
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = ANY (:job_names) AND outputs IS NOT NULL

-- name: upsert_edges
-- Inserts or replaces the edges of a job.
INSERT INTO run_edges (tenant_id, run_id, job_name, needs, needed_by)
VALUES (:tenant_id, :run_id, :job_name, :needs, :needed_by)
ON CONFLICT (tenant_id, run_id, job_name)
DO UPDATE SET needs = excluded.needs, needed_by = excluded.needed_by

-- name: insert_group_need
-- Inserts an edge from a group to a job that needs it.
INSERT INTO run_group_needs (tenant_id, run_id, job_name, group_name, if_failed)
VALUES (:tenant_id, :run_id, :job_name, :group_name, :if_failed)

-- name: upsert_group
-- Inserts a group, or updates it when it is resolved.
INSERT INTO run_groups (tenant_id, run_id, group_name, digest, resolved_at)
VALUES (:tenant_id, :run_id, :group_name, :digest, :resolved_at)
ON CONFLICT (tenant_id, run_id, group_name) DO UPDATE SET digest = excluded.digest, resolved_at = excluded.resolved_at

-- name: insert_pending
-- Inserts a pending command.
INSERT INTO run_pending_commands (
    tenant_id, run_id, position_epoch, position_sequence, command_id, command_type, payload, correlation_id, traceparent,
    tracestate
) VALUES (
    :tenant_id, :run_id, :position_epoch, :position_sequence, :command_id, :command_type, :payload, :correlation_id,
    :traceparent, :tracestate
)

-- name: delete_pending
-- Deletes a pending command.
DELETE FROM run_pending_commands
WHERE tenant_id = :tenant_id AND run_id = :run_id AND position_epoch = :position_epoch
    AND position_sequence = :position_sequence
