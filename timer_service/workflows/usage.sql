-- name: count_open
-- Counts the open workflows of a tenant, at most `most`.
SELECT COUNT(*) AS used FROM (
    SELECT 1 AS one FROM workflows WHERE tenant_id = :tenant_id AND ended_at IS NULL LIMIT :most
) AS counted

-- name: sum_stored
-- Adds up the bytes of the large workflows of a tenant. Each row has one at least, so `most` rows have `most` or more.
SELECT CAST(COALESCE(SUM(input_bytes + effect_bytes + message_bytes), 0) AS BIGINT) AS used FROM (
    SELECT input_bytes, effect_bytes, message_bytes FROM workflows
    WHERE tenant_id = :tenant_id AND input_bytes + effect_bytes + message_bytes > 1000 LIMIT :most
) AS counted
