-- name: settled_runs
-- Locks and returns the runs that were settled before an instant, oldest first. Skips runs that are locked.
SELECT tenant_id, run_id FROM runs WHERE settled_at < :before ORDER BY settled_at LIMIT :limit /* skip locked */

-- name: delete_rows
-- Deletes some of the rows of a run from a table.
DELETE FROM {table}
WHERE ({key}) IN (SELECT {key} FROM {table} WHERE tenant_id = :tenant_id AND run_id = :run_id LIMIT :limit)

-- name: delete_run
-- Deletes a run if no row of another table belongs to it.
DELETE FROM runs WHERE tenant_id = :tenant_id AND run_id = :run_id AND {is_last}

-- name: has_no_rows
-- Whether no row of a table belongs to a run.
NOT EXISTS (SELECT 1 FROM {table} AS rest WHERE rest.tenant_id = :tenant_id AND rest.run_id = :run_id)
