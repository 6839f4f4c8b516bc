-- name: count
-- How many rows match, up to a limit.
SELECT COUNT(*) AS count FROM (SELECT 1 AS one FROM {table} WHERE {where} LIMIT :limit) AS counted

-- name: overdue
-- How many rows are available, up to a limit, and since when the oldest of them is.
SELECT COUNT(*) AS count, MIN(available_at) AS oldest_at FROM (
    SELECT available_at FROM {table} WHERE available_at <= :now ORDER BY available_at LIMIT :limit
) AS counted
