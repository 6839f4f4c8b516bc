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

-- name: search
-- Returns the first ids of a tenant in a range that the page shows, in order. It looks at a limited number of rows.
SELECT tenant_id, id FROM (
    SELECT tenant_id, {id} AS id, {where} AS is_shown FROM {table}
    WHERE tenant_id = :tenant_id AND {id} >= :from AND {id} < :end
    ORDER BY {id}
    LIMIT :looked_at
) AS first_rows
WHERE is_shown
LIMIT :limit

-- name: last
-- Returns rows of a tenant in the order of an index: their ids, why they failed and an instant.
SELECT tenant_id, {id} AS id, {at} AS at, {reason} AS reason FROM {table}
WHERE {where} AND tenant_id = :tenant_id
ORDER BY {order}
LIMIT :limit
