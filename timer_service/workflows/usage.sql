-- name: count_open
-- Counts the open workflows of a tenant, at most `most`.
SELECT COUNT(*) AS used FROM (
    SELECT 1 AS one FROM workflows WHERE tenant_id = :tenant_id AND ended_at IS NULL LIMIT :most
) AS counted

-- name: sum_stored
-- Adds up the bytes of the large workflows of a tenant. Each row has one at least, so `most` rows have `most` or more.
SELECT CAST(COALESCE(SUM(
    input_bytes + effect_bytes + message_bytes + CASE WHEN effects > 10 THEN 1000 * (effects - 10) ELSE 0 END
), 0) AS BIGINT) AS used FROM (
    SELECT input_bytes, effect_bytes, message_bytes, effects FROM workflows
    WHERE tenant_id = :tenant_id AND (input_bytes + effect_bytes + message_bytes > 1000 OR effects > 10) LIMIT :most
) AS counted
