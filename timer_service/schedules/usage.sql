-- name: count_live
-- Counts the active and paused schedules of a tenant, at most `most`.
SELECT COUNT(*) AS used FROM (
    SELECT 1 AS one FROM schedules WHERE tenant_id = :tenant_id AND status IN ('active', 'paused') LIMIT :most
) AS counted
