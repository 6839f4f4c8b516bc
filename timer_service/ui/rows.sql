-- name: next_timers
-- Returns the timers that fire next, also those that wait for their next attempt.
SELECT tenant_id, service_call_id AS id, due_at, 'UTC' AS zone, available_at
FROM timer_schedules
WHERE available_at IS NOT NULL
ORDER BY available_at
LIMIT :limit

-- name: next_slots
-- Returns the schedules that fire next.
SELECT tenant_id, schedule_id AS id, slot_at AS due_at, zone, available_at
FROM schedules
WHERE available_at IS NOT NULL
ORDER BY available_at
LIMIT :limit

-- name: open_workflows
-- Counts the open workflows by status, at most the limit together.
SELECT status, COUNT(*) AS count FROM (
    SELECT status FROM workflows WHERE ended_at IS NULL LIMIT :limit
) AS counted
GROUP BY status

-- name: due_lanes
-- Returns the lanes with workflows that workers could claim, in order, and how many of these are due. Looking at lanes and counting
-- each have the limit. Each lane costs three steps of their index to find it, whatever sleeps in the others.
WITH RECURSIVE lanes (tenant_id, queue, type, number) AS (
    SELECT tenant_id, queue, type, 1 FROM (
        SELECT tenant_id, queue, type FROM workflows
        WHERE available_at IS NOT NULL
        ORDER BY tenant_id, queue, type, available_at
        LIMIT 1
    ) AS first_lane
    UNION ALL
    SELECT (
        SELECT tenant_id FROM workflows
        WHERE available_at IS NOT NULL AND (tenant_id, queue, type) > (lanes.tenant_id, lanes.queue, lanes.type)
        ORDER BY tenant_id, queue, type, available_at
        LIMIT 1
    ), (
        SELECT queue FROM workflows
        WHERE available_at IS NOT NULL AND (tenant_id, queue, type) > (lanes.tenant_id, lanes.queue, lanes.type)
        ORDER BY tenant_id, queue, type, available_at
        LIMIT 1
    ), (
        SELECT type FROM workflows
        WHERE available_at IS NOT NULL AND (tenant_id, queue, type) > (lanes.tenant_id, lanes.queue, lanes.type)
        ORDER BY tenant_id, queue, type, available_at
        LIMIT 1
    ), number + 1
    FROM lanes
    WHERE tenant_id IS NOT NULL AND number < :limit
)
SELECT tenant_id, queue, type, (
    SELECT COUNT(*) FROM (
        SELECT 1 AS one FROM workflows
        WHERE tenant_id = lanes.tenant_id AND queue = lanes.queue AND type = lanes.type AND available_at <= :now
        LIMIT :limit
    ) AS counted
) AS count
FROM lanes
WHERE tenant_id IS NOT NULL

-- name: workers
-- Returns the workers that were seen since an instant.
SELECT tenant_id, queue, types FROM workflow_workers WHERE seen_at > :since LIMIT :limit

-- name: open_runs
-- Returns runs that have not ended, in the order in which the sweep looks at them.
SELECT tenant_id, run_id, created_at
FROM runs
WHERE sweep_at IS NOT NULL
ORDER BY sweep_at
LIMIT :limit

-- name: count_jobs
-- Counts the jobs of a run: all, at most the limit, and those that are open and that failed.
SELECT tenant_id, run_id, open_jobs, failed_jobs, (
    SELECT COUNT(*) FROM (
        SELECT 1 AS one FROM run_jobs
        WHERE run_jobs.tenant_id = runs.tenant_id AND run_jobs.run_id = runs.run_id
        LIMIT :limit
    ) AS counted
) AS jobs
FROM runs
WHERE tenant_id = :tenant_id AND run_id = :run_id

-- name: blocked_commands
-- Returns the tenants whose next command could not be applied, why, and how many commands wait there in some rows.
SELECT tenant_id, last_error, (
    SELECT SUM(number_of_commands - done) FROM (
        SELECT number_of_commands, done FROM waiting_commands AS waiting
        WHERE waiting.tenant_id = waiting_commands.tenant_id
        LIMIT :rows
    ) AS counted
) AS commands
FROM waiting_commands
WHERE available_at > 0
LIMIT :limit

-- name: timers_by_id
-- Returns the next timers of a tenant in a range of ids, in their order, without their data.
SELECT service_call_id, state, due_at, attempt, last_error, correlation_id
FROM timer_schedules
WHERE tenant_id = :tenant_id AND service_call_id >= :from AND service_call_id < :end
ORDER BY service_call_id
LIMIT :limit

-- name: workflow_error
-- Returns the error of a workflow that failed with one.
SELECT tenant_id, workflow_id, error
FROM /* each of many */ workflow_data
WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id AND error IS NOT NULL
