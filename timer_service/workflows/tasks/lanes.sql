-- name: look
-- How many workflows of a lane are available, up to a limit, and when the next other one is available.
SELECT (
        SELECT COUNT(*) FROM (
            SELECT 1 AS one FROM workflows
            WHERE tenant_id = :tenant_id AND queue = :queue AND type = :type AND available_at <= :now
            LIMIT :limit
        ) AS counted
    ) AS available,
    (
        SELECT MIN(available_at) FROM workflows
        WHERE tenant_id = :tenant_id AND queue = :queue AND type = :type AND available_at > :now
    ) AS next_at,
    CAST(:number AS INTEGER) AS number

-- name: claim
-- Claims the workflows of a lane that have been available longest, up to a limit, for a worker.
WITH picked AS MATERIALIZED (  -- evaluated once: if a plan ran it for each row, it would lock more rows than the limit
    SELECT rowid AS place FROM workflows
    WHERE tenant_id = :tenant_id AND queue = :queue AND type = :type AND available_at <= :now
    ORDER BY available_at
    LIMIT :limit
    /* skip locked */
)
UPDATE workflows
SET status = 'running', available_at = :until, attempt = attempt + 1, counted_from = :now,
    lease_token = :token, worker_id = :worker_id, claimed_at = :now, lease_ms = :lease_ms, report_number = 0
WHERE rowid IN (SELECT place FROM picked)
RETURNING {columns}

-- name: release
-- Returns a claimed workflow to its old place. The attempt does not count. `counted_from` stays: if the clock was ahead, the
-- workflow is due by this clock only.
UPDATE workflows
SET status = 'waiting', available_at = due_at, attempt = attempt - 1,
    lease_token = NULL, worker_id = NULL, claimed_at = NULL, lease_ms = NULL, report_number = NULL
WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id AND lease_token = :token

-- name: overdue
-- How many workflows are available, up to a limit, and since when the oldest of them is. It reads all that may be claimed:
-- their index begins with the lane.
SELECT COUNT(CASE WHEN available_at <= :now THEN 1 END) AS count,
    MIN(CASE WHEN available_at <= :now THEN available_at END) AS oldest_at
FROM (
    SELECT available_at FROM workflows WHERE available_at IS NOT NULL LIMIT :limit
) AS counted
