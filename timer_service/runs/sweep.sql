-- name: due_runs
-- Returns the runs whose sweep is due, ordered by `sweep_at`.
SELECT tenant_id, run_id FROM runs WHERE sweep_at <= :now ORDER BY sweep_at LIMIT :limit

-- name: next_sweep
-- Returns the earliest `sweep_at` of all runs, or null.
SELECT MIN(sweep_at) AS at FROM runs WHERE sweep_at IS NOT NULL

-- name: next_stale
-- Returns the earliest `stale_at` of all jobs, or null.
SELECT MIN(stale_at) AS at FROM run_jobs WHERE stale_at IS NOT NULL

-- name: postpone_run
-- Updates the next sweep of a run, if it is earlier than `:at`.
UPDATE runs SET sweep_at = :at WHERE tenant_id = :tenant_id AND run_id = :run_id AND sweep_at < :at

-- name: postpone_stale
-- Updates `stale_at` of the jobs of a run, where it is earlier than `:at`.
UPDATE run_jobs SET stale_at = :at WHERE tenant_id = :tenant_id AND run_id = :run_id AND stale_at < :at
