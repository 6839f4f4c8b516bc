-- name: count_live
-- Counts the active and paused schedules of a tenant, at most `most`.
SELECT COUNT(*) AS used FROM (
    SELECT 1 AS one FROM schedules WHERE tenant_id = :tenant_id AND status IN ('active', 'paused') LIMIT :most
) AS counted

-- name: count_backfills
-- Counts the backfills of a tenant that have not ended, at most `most`.
SELECT COUNT(*) AS used FROM (
    SELECT 1 AS one FROM schedule_backfills WHERE tenant_id = :tenant_id LIMIT :most
) AS counted
