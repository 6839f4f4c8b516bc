-- name: to_sweep
SELECT tenant_id, run_id FROM runs WHERE sweep_at <= :now ORDER BY sweep_at LIMIT :limit

-- name: stale
SELECT tenant_id, run_id, job_name FROM run_jobs WHERE stale_at <= :now ORDER BY stale_at LIMIT :limit

-- name: next_sweep
SELECT MIN(sweep_at) AS at FROM runs WHERE sweep_at IS NOT NULL

-- name: next_stale
SELECT MIN(stale_at) AS at FROM run_jobs WHERE stale_at IS NOT NULL

-- name: postpone_run
UPDATE runs SET sweep_at = :at WHERE tenant_id = :tenant_id AND run_id = :run_id AND sweep_at < :at

-- name: postpone_stale
UPDATE run_jobs SET stale_at = :at WHERE tenant_id = :tenant_id AND run_id = :run_id AND stale_at < :at
