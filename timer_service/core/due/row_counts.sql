-- name: count
-- How many rows match, up to a limit.
SELECT COUNT(*) AS count FROM (SELECT 1 AS one FROM {table} WHERE {where} LIMIT :limit) AS counted

-- name: overdue
-- How many rows are available, up to a limit, and since when the oldest of them is.
SELECT COUNT(*) AS count, MIN(available_at) AS oldest_at FROM (
    SELECT available_at FROM {table} WHERE available_at <= :now ORDER BY available_at LIMIT :limit
) AS counted

-- name: overdue_in_lanes
-- The same for a table that has no index over `available_at` alone. It reads all claimable rows, up to a limit.
SELECT COUNT(CASE WHEN available_at <= :now THEN 1 END) AS count,
    MIN(CASE WHEN available_at <= :now THEN available_at END) AS oldest_at
FROM (
    SELECT available_at FROM {table} WHERE available_at IS NOT NULL LIMIT :limit
) AS counted
