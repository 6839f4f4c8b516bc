-- name: next_available
-- Returns when the next command of the table may be handled.
SELECT MIN(available_at) AS at FROM {table} WHERE available_at IS NOT NULL

-- name: due_tenants
-- Like `due_tenants` of `lease.sql`. Ordered like the whole index, so that planners use it also for the oldest row.
WITH RECURSIVE unfinished (tenant_id, number) AS (
    SELECT MIN(tenant_id), 1 FROM {table} WHERE available_at IS NOT NULL AND tenant_id > :after
    UNION ALL
    SELECT (
        SELECT MIN(tenant_id) FROM {table} WHERE available_at IS NOT NULL AND tenant_id > unfinished.tenant_id
    ), number + 1
    FROM unfinished WHERE tenant_id IS NOT NULL AND number < :looked_at
)
SELECT tenant_id, number, oldest FROM (
    SELECT tenant_id, number, (
        SELECT available_at FROM {table}
        WHERE available_at IS NOT NULL AND tenant_id = unfinished.tenant_id
        ORDER BY available_at, position_epoch, position_sequence
        LIMIT 1
    ) AS oldest
    FROM unfinished
) AS found
WHERE oldest <= :now OR tenant_id IS NULL OR number = :looked_at
LIMIT :limit

-- name: lock_due
-- Locks the oldest due command of a tenant. If another instance has locked it, locks none: the next one may have the same
-- timers or slots, and would wait for the other instance.
SELECT {columns}
FROM {table}
WHERE COALESCE(available_at <= :now, FALSE)  -- in this form, planners use no index for it
    AND tenant_id = :tenant_id AND (position_epoch, position_sequence) = (
    SELECT position_epoch, position_sequence FROM {table}
    WHERE tenant_id = :tenant_id AND available_at IS NOT NULL
    ORDER BY available_at, position_epoch, position_sequence
    LIMIT 1
)
/* skip locked */
