-- name: settled_runs
-- Locks and returns the runs that were settled before an instant, oldest first. Skips runs that are locked.
SELECT tenant_id, run_id FROM runs WHERE settled_at < :before ORDER BY settled_at LIMIT :limit /* skip locked */

-- name: delete_edges
-- Deletes the edges of some of the jobs of a run.
DELETE FROM run_edges
WHERE (tenant_id, run_id, job_name) IN (
    SELECT tenant_id, run_id, job_name FROM run_edges
    WHERE tenant_id = :tenant_id AND run_id = :run_id LIMIT :limit
)

-- name: delete_jobs
-- Deletes some of the jobs of a run.
DELETE FROM run_jobs
WHERE (tenant_id, run_id, job_name) IN (
    SELECT tenant_id, run_id, job_name FROM run_jobs
    WHERE tenant_id = :tenant_id AND run_id = :run_id LIMIT :limit
)

-- name: delete_group_needs
-- Deletes some of the edges from the groups of a run to its jobs.
DELETE FROM run_group_needs
WHERE (tenant_id, run_id, job_name, group_name) IN (
    SELECT tenant_id, run_id, job_name, group_name FROM run_group_needs
    WHERE tenant_id = :tenant_id AND run_id = :run_id LIMIT :limit
)

-- name: delete_pending
-- Deletes some of the pending commands of a run.
DELETE FROM run_pending_commands
WHERE (tenant_id, run_id, position_epoch, position_sequence) IN (
    SELECT tenant_id, run_id, position_epoch, position_sequence FROM run_pending_commands
    WHERE tenant_id = :tenant_id AND run_id = :run_id LIMIT :limit
)

-- name: delete_groups
-- Deletes some of the groups of a run.
DELETE FROM run_groups
WHERE (tenant_id, run_id, group_name) IN (
    SELECT tenant_id, run_id, group_name FROM run_groups
    WHERE tenant_id = :tenant_id AND run_id = :run_id LIMIT :limit
)

-- name: delete_run
-- Deletes a run if no row of another table belongs to it.
DELETE FROM runs
WHERE tenant_id = :tenant_id AND run_id = :run_id
    AND NOT EXISTS (SELECT 1 FROM run_edges AS rest WHERE rest.tenant_id = :tenant_id AND rest.run_id = :run_id)
    AND NOT EXISTS (SELECT 1 FROM run_jobs AS rest WHERE rest.tenant_id = :tenant_id AND rest.run_id = :run_id)
    AND NOT EXISTS (SELECT 1 FROM run_group_needs AS rest WHERE rest.tenant_id = :tenant_id AND rest.run_id = :run_id)
    AND NOT EXISTS (
        SELECT 1 FROM run_pending_commands AS rest WHERE rest.tenant_id = :tenant_id AND rest.run_id = :run_id
    )
    AND NOT EXISTS (SELECT 1 FROM run_groups AS rest WHERE rest.tenant_id = :tenant_id AND rest.run_id = :run_id)
