-- name: count_open
-- Counts the open runs of a tenant, at most `most`.
SELECT COUNT(*) AS used FROM (
    SELECT 1 AS one FROM runs WHERE tenant_id = :tenant_id AND status IN ('running', 'cancelling') AND digest IS NOT NULL LIMIT :most
) AS counted

-- name: sum_rows
-- Adds up the rows of the open runs of a tenant. Each run has one at least, so `most` runs have `most` or more.
SELECT CAST(COALESCE(SUM(row_count), 0) AS BIGINT) AS used FROM (
    SELECT row_count FROM runs WHERE tenant_id = :tenant_id AND status IN ('running', 'cancelling') AND digest IS NOT NULL LIMIT :most
) AS counted

-- name: sum_pending
-- Adds up the bytes of the commands that wait for a StartRun or a ResolveGroup. Each run has one at least, as above.
SELECT CAST(COALESCE(SUM(pending_bytes), 0) AS BIGINT) AS used FROM (
    SELECT pending_bytes FROM runs WHERE tenant_id = :tenant_id AND pending_bytes > 0 LIMIT :most
) AS counted
