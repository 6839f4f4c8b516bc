-- name: page
-- Returns the next tenants that have a row, in order of their names. Each one costs one search of an index.
WITH RECURSIVE found(tenant_id, number) AS (
    SELECT MIN(tenant_id), 1 FROM {table} WHERE {where} AND tenant_id > :after
    UNION ALL
    SELECT (SELECT MIN(tenant_id) FROM {table} WHERE {where} AND tenant_id > found.tenant_id), number + 1
    FROM found
    WHERE found.tenant_id IS NOT NULL AND number < :limit
)
SELECT tenant_id FROM found WHERE tenant_id IS NOT NULL

-- name: count
-- Returns the number of rows of a tenant, at most the limit.
SELECT CAST(:tenant_id AS TEXT) AS tenant_id, COUNT(*) AS count FROM (
    SELECT 1 AS one FROM {table} WHERE {where} AND tenant_id = :tenant_id LIMIT :limit
) AS counted

-- name: first
-- Returns the first row of a tenant in the order of the index: its id, and why it failed.
SELECT tenant_id, {id} AS id, {reason} AS reason FROM {table}
WHERE {where} AND tenant_id = :tenant_id
ORDER BY {order}
LIMIT 1
