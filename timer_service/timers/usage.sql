-- name: count_pending
-- Counts the timers of a tenant that fire later, at most `most`. The order makes PostgreSQL use the index of the tenant.
SELECT COUNT(*) AS used FROM (
    SELECT 1 AS one FROM timer_schedules
    WHERE tenant_id = :tenant_id AND available_at IS NOT NULL AND due_at > :now
    ORDER BY due_at, service_call_id LIMIT :most
) AS counted

-- name: sum_large_data
-- Adds up the characters of the large data of a tenant. Each row has one at least, so `most` rows have `most` or more.
SELECT CAST(COALESCE(SUM(large_data), 0) AS BIGINT) AS used FROM (
    SELECT large_data FROM timer_schedules WHERE tenant_id = :tenant_id AND large_data IS NOT NULL LIMIT :most
) AS counted
