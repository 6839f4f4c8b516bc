-- name: count_open
-- Counts the signals of a tenant that have not ended, at most `most`.
SELECT COUNT(*) AS used FROM (
    SELECT 1 AS one FROM work_signals
    WHERE tenant_id = :tenant_id AND status IN ('active', 'paused', 'fired') AND trigger_kind IS NOT NULL
    LIMIT :most
) AS counted
