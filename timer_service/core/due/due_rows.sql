-- name: count_available
-- How many rows are due, up to a limit. The order makes planners step through the index.
SELECT COUNT(*) AS count FROM (
    SELECT 1 AS one FROM {table} WHERE {available} <= :now ORDER BY {available} LIMIT :limit
) AS counted

-- name: next_available
-- When the next row is due.
SELECT MIN({available}) AS at FROM {table} WHERE {where}

-- name: next_available_after
-- When the next row is due that was not due at an instant.
SELECT MIN({available}) AS at FROM {table} WHERE {available} > :now

-- name: due_tenants
-- The next tenants that have due rows, up to a limit, and then the last tenant that was looked at. Each tenant costs two index
-- steps: one to find it and one to its oldest row. If no tenant follows, the last id is NULL. Only the index of each tenant's rows
-- has this order: for MIN(tenant_id), planners without statistics take the primary key.
WITH RECURSIVE unsettled (tenant_id, number) AS (
    SELECT (
        SELECT tenant_id FROM {table}
        WHERE {where} AND tenant_id > :after
        ORDER BY tenant_id, {order}
        LIMIT 1
    ), 1
    UNION ALL
    SELECT (
        SELECT tenant_id FROM {table}
        WHERE {where} AND tenant_id > unsettled.tenant_id
        ORDER BY tenant_id, {order}
        LIMIT 1
    ), number + 1
    FROM unsettled WHERE tenant_id IS NOT NULL AND number < :looked_at
),
found AS MATERIALIZED (  -- else a planner looks for the oldest row twice: for the result and for the condition
    SELECT tenant_id, number, (
        SELECT {oldest} FROM {table}
        WHERE {where} AND tenant_id = unsettled.tenant_id
        ORDER BY {order}
        LIMIT 1
    ) AS oldest
    FROM unsettled
)
SELECT tenant_id, number, oldest FROM found
WHERE oldest <= :now OR tenant_id IS NULL OR number = :looked_at
LIMIT :limit

-- name: due
-- Locks and returns the rows that have been due longest, up to a limit.
SELECT {columns} FROM {table}
WHERE {available} <= :now
ORDER BY {available}
LIMIT :limit
/* skip locked */

-- name: due_of_tenant
-- Returns the oldest due rows of one tenant, up to a limit. Only the index of each tenant's rows has this order: planners would
-- else use the other one, and read the rows of all tenants.
SELECT {columns} FROM {table}
WHERE tenant_id = :tenant_id AND {oldest} <= :now AND {available} <= :now AND {where}
ORDER BY {order}
LIMIT :limit

-- name: due_by_key
-- Locks and returns a due row, unless another transaction has locked it. COALESCE keeps planners from the partial indexes.
SELECT {columns} FROM /* each of many */ {table}
WHERE {key_is} AND COALESCE({available} <= :now AND {where}, FALSE)
/* skip locked */

-- name: oldest_of_tenant
-- Locks and returns the oldest row of a tenant if it is due. If another transaction has locked it, returns none.
SELECT {columns} FROM {table}
WHERE COALESCE({available} <= :now, FALSE) AND tenant_id = :tenant_id AND ({rest_of_key}) = (
    SELECT {rest_of_key} FROM {table} WHERE tenant_id = :tenant_id AND {where} ORDER BY {order} LIMIT 1
)
/* skip locked */

-- name: postpone
-- Lets a locked row wait with an error. Nothing of the row is read: it may be damaged.
UPDATE {table} SET {available} = :retry_at, last_error = :error WHERE {key_is}
