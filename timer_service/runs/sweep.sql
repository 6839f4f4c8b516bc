-- name: due_runs
-- Returns the runs whose sweep is due, ordered by `sweep_at`.
SELECT tenant_id, run_id FROM runs WHERE sweep_at <= :now ORDER BY sweep_at LIMIT :limit

-- name: stale_tenants
-- Like `due_tenants` of `lease.sql`: the next tenants with jobs whose `stale_at` has passed. Only
-- these statements say `stale_at > 0`, so only they use the index of tenants: planners confuse it with others.
WITH RECURSIVE waiting (tenant_id, number) AS (
    SELECT (
        SELECT tenant_id FROM run_jobs
        WHERE stale_at > 0 AND tenant_id > :after
        ORDER BY tenant_id, stale_at
        LIMIT 1
    ), 1
    UNION ALL
    SELECT (
        SELECT tenant_id FROM run_jobs
        WHERE stale_at > 0 AND tenant_id > waiting.tenant_id
        ORDER BY tenant_id, stale_at
        LIMIT 1
    ), number + 1
    FROM waiting WHERE tenant_id IS NOT NULL AND number < :looked_at
),
found AS MATERIALIZED (
    SELECT tenant_id, number, (
        SELECT MIN(stale_at) FROM run_jobs WHERE stale_at > 0 AND tenant_id = waiting.tenant_id
    ) AS oldest
    FROM waiting
)
SELECT tenant_id, number, oldest FROM found
WHERE oldest <= :now OR tenant_id IS NULL OR number = :looked_at
LIMIT :limit

-- name: stale_jobs_of_tenant
-- Returns the jobs of a tenant whose `stale_at` has passed, ordered by `stale_at`.
SELECT tenant_id, run_id, job_name FROM run_jobs
WHERE tenant_id = :tenant_id AND stale_at > 0 AND stale_at <= :now
ORDER BY stale_at
LIMIT :limit

-- name: oldest_stale_job
-- Returns the job whose `stale_at` has passed first.
SELECT tenant_id, run_id, job_name FROM run_jobs WHERE stale_at <= :now ORDER BY stale_at LIMIT 1

-- name: stale_at
-- Returns a job and its `stale_at`.
SELECT tenant_id, run_id, job_name, stale_at FROM run_jobs
WHERE tenant_id = :tenant_id AND run_id = :run_id AND job_name = :job_name

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
