-- name: settled
SELECT tenant_id, run_id FROM runs WHERE settled_at < :before ORDER BY settled_at LIMIT :limit /* skip locked */

-- name: delete_needs
DELETE FROM run_needs
WHERE (tenant_id, run_id, job_name, upstream_name) IN (
    SELECT tenant_id, run_id, job_name, upstream_name FROM run_needs
    WHERE tenant_id = :tenant_id AND run_id = :run_id LIMIT :limit
)

-- name: delete_jobs
DELETE FROM run_jobs
WHERE (tenant_id, run_id, job_name) IN (
    SELECT tenant_id, run_id, job_name FROM run_jobs
    WHERE tenant_id = :tenant_id AND run_id = :run_id LIMIT :limit
)

-- name: delete_group_needs
DELETE FROM run_group_needs
WHERE (tenant_id, run_id, job_name, group_name) IN (
    SELECT tenant_id, run_id, job_name, group_name FROM run_group_needs
    WHERE tenant_id = :tenant_id AND run_id = :run_id LIMIT :limit
)

-- name: delete_pending
DELETE FROM run_pending_commands
WHERE (tenant_id, run_id, position_epoch, position_sequence) IN (
    SELECT tenant_id, run_id, position_epoch, position_sequence FROM run_pending_commands
    WHERE tenant_id = :tenant_id AND run_id = :run_id LIMIT :limit
)

-- name: delete_groups
DELETE FROM run_groups
WHERE (tenant_id, run_id, group_name) IN (
    SELECT tenant_id, run_id, group_name FROM run_groups
    WHERE tenant_id = :tenant_id AND run_id = :run_id LIMIT :limit
)

-- name: delete_run
DELETE FROM runs
WHERE tenant_id = :tenant_id AND run_id = :run_id
    AND NOT EXISTS (SELECT 1 FROM run_needs AS rest WHERE rest.tenant_id = :tenant_id AND rest.run_id = :run_id)
    AND NOT EXISTS (SELECT 1 FROM run_jobs AS rest WHERE rest.tenant_id = :tenant_id AND rest.run_id = :run_id)
    AND NOT EXISTS (SELECT 1 FROM run_group_needs AS rest WHERE rest.tenant_id = :tenant_id AND rest.run_id = :run_id)
    AND NOT EXISTS (
        SELECT 1 FROM run_pending_commands AS rest WHERE rest.tenant_id = :tenant_id AND rest.run_id = :run_id
    )
    AND NOT EXISTS (SELECT 1 FROM run_groups AS rest WHERE rest.tenant_id = :tenant_id AND rest.run_id = :run_id)
