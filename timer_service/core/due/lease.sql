-- name: claim
-- Claims the rows that have been available longest, up to a limit, under one token.
WITH picked AS MATERIALIZED (  -- evaluated once: if a plan ran it for each row, it would lock more rows than the limit
    SELECT rowid AS place FROM {table}
    WHERE available_at <= :now
    ORDER BY available_at{then}
    LIMIT :limit
    /* skip locked */
)
UPDATE {table}
SET available_at = :until, attempt = attempt + 1, lease_token = :token, {state} = '{held}'
WHERE rowid IN (SELECT place FROM picked)
RETURNING {claimed}, attempt, lease_token, available_at

-- name: claim_alone
-- Like `claim`, on SQLite, where no other process claims. It finds rows by their row ids, and `read_claim` returns them.
UPDATE {table}
SET available_at = :until, attempt = attempt + 1, lease_token = :token, {state} = '{held}'
WHERE rowid IN (SELECT rowid FROM {table} WHERE available_at <= :now ORDER BY available_at{then} LIMIT :limit)

-- name: read_claim
-- Returns the rows of a claim.
SELECT {claimed}, attempt, lease_token, available_at
FROM {table}
WHERE available_at = :until AND lease_token = :token

-- name: count_available
-- How many rows are available, up to a limit. The order makes planners step through the index of `available_at`.
SELECT COUNT(*) AS count FROM (
    SELECT 1 AS one FROM {table} WHERE available_at <= :now ORDER BY available_at LIMIT :limit
) AS counted

-- name: due_tenants
-- The next tenants that have due rows, up to a limit, and then the last tenant that was looked at. Each tenant with rows
-- to fire costs two index steps: one to find it and one to its oldest row. If no tenant follows, the last id is NULL. Only the
-- index of each tenant's rows has this order. For MIN(tenant_id), a planner without statistics took the primary key, and read
-- all settled rows of the first tenant.
WITH RECURSIVE unsettled (tenant_id, number) AS (
    SELECT (
        SELECT tenant_id FROM {table}
        WHERE available_at IS NOT NULL AND tenant_id > :after
        ORDER BY tenant_id, {oldest_first}
        LIMIT 1
    ), 1
    UNION ALL
    SELECT (
        SELECT tenant_id FROM {table}
        WHERE available_at IS NOT NULL AND tenant_id > unsettled.tenant_id
        ORDER BY tenant_id, {oldest_first}
        LIMIT 1
    ), number + 1
    FROM unsettled WHERE tenant_id IS NOT NULL AND number < :looked_at
),
found AS MATERIALIZED (  -- else a planner looks for the oldest row twice: for the result and for the condition
    SELECT tenant_id, number, (
        SELECT MIN({oldest_first}) FROM {table}
        WHERE available_at IS NOT NULL AND tenant_id = unsettled.tenant_id
    ) AS oldest
    FROM unsettled
)
SELECT tenant_id, number, oldest FROM found
WHERE oldest <= :now OR tenant_id IS NULL OR number = :looked_at
LIMIT :limit

-- name: claim_of_tenant
-- Claims the oldest available rows of one tenant, up to a limit.
WITH picked AS MATERIALIZED (
    SELECT rowid AS place FROM {table}
    WHERE tenant_id = :tenant_id AND {oldest_first} <= :now AND available_at <= :now
    ORDER BY {oldest_first}{then}
    LIMIT :limit
    /* skip locked */
)
UPDATE {table}
SET available_at = :until, attempt = attempt + 1, lease_token = :token, {state} = '{held}'
WHERE rowid IN (SELECT place FROM picked)
RETURNING {claimed}, attempt, lease_token, available_at

-- name: look_at_lane
-- How many rows of a lane are available, up to a limit, and when the next other row of the lane is available.
SELECT (
        SELECT COUNT(*) FROM (
            SELECT 1 AS one FROM {table} WHERE {lane_is} AND available_at <= :now LIMIT :limit
        ) AS counted
    ) AS available,
    (SELECT MIN(available_at) FROM {table} WHERE {lane_is} AND available_at > :now) AS next_at,
    CAST(:number AS INTEGER) AS number

-- name: claim_of_lane
-- Claims the rows of a lane that have been available longest, up to a limit, for a holder.
WITH picked AS MATERIALIZED (
    SELECT rowid AS place FROM {table}
    WHERE {lane_is} AND available_at <= :now
    ORDER BY available_at
    LIMIT :limit
    /* skip locked */
)
UPDATE {table}
SET available_at = :until, attempt = attempt + 1, lease_token = :token, {state} = '{held}'{hold}
WHERE rowid IN (SELECT place FROM picked)
RETURNING {claimed}, attempt, lease_token, available_at

-- name: complete
-- Settles a held row as done.
UPDATE {table}
SET {complete}, available_at = NULL, lease_token = NULL, last_error = NULL
WHERE {key_is} AND lease_token = :token

-- name: complete_claim
-- Settles all rows of one claim as done.
UPDATE {table}
SET {complete}, available_at = NULL, lease_token = NULL, last_error = NULL
WHERE available_at = :until AND lease_token = :token

-- name: complete_claim_shared
-- Like `complete_claim`, but skips rows that another transaction has locked. It never waits, so it cannot deadlock.
WITH held AS MATERIALIZED (
    SELECT rowid AS place FROM {table} WHERE available_at = :until AND lease_token = :token
    /* skip locked */
)
UPDATE {table}
SET {complete}, available_at = NULL, lease_token = NULL, last_error = NULL
WHERE rowid IN (SELECT place FROM held)

-- name: complete_and_delete
-- Deletes a held row.
DELETE FROM {table} WHERE {key_is} AND lease_token = :token

-- name: complete_claim_and_delete
-- Deletes all rows of one claim.
DELETE FROM {table} WHERE available_at = :until AND lease_token = :token

-- name: complete_claim_shared_and_delete
-- Like `complete_claim_and_delete`, but skips rows that another transaction has locked.
WITH held AS MATERIALIZED (
    SELECT rowid AS place FROM {table} WHERE available_at = :until AND lease_token = :token
    /* skip locked */
)
DELETE FROM {table} WHERE rowid IN (SELECT place FROM held)

-- name: lock_free
-- Locks a held row, unless another transaction has locked it.
SELECT {key} FROM {table} WHERE {key_is} AND lease_token = :token
/* skip locked */

-- name: still_held
-- Returns the key of a held row. Does not lock it.
SELECT {key} FROM {table} WHERE {key_is} AND lease_token = :token

-- name: discount
-- Takes back the attempt that the claim added to a held row.
UPDATE {table}
SET attempt = attempt - 1
WHERE {key_is} AND lease_token = :token

-- name: charge
-- Adds an attempt to a held row, and extends its lease.
UPDATE {table}
SET attempt = attempt + 1, available_at = :until
WHERE {key_is} AND lease_token = :token

-- name: retry
-- Returns a held row to the waiting state until its next attempt. `uncounted` attempts are taken back. If the clock was set
-- back since the claim, the row is not yet due, and its next attempt is when it is.
UPDATE {table}
SET {state} = '{waiting}', available_at = CASE WHEN :at < {oldest_first} THEN {oldest_first} ELSE :at END,
    lease_token = NULL, last_error = :error, attempt = attempt - :uncounted
WHERE {key_is} AND lease_token = :token

-- name: bury
-- Gives up a held row: it stays, and is not claimed again.
UPDATE {table}
SET {state} = '{buried}', available_at = NULL, lease_token = NULL, last_error = :error
WHERE {key_is} AND lease_token = :token

-- name: release
-- Returns a held row to its old place. The attempt does not count.
UPDATE {table}
SET {state} = '{waiting}', available_at = {oldest_first}, lease_token = NULL, attempt = attempt - 1{unhold}
WHERE {key_is} AND lease_token = :token

-- name: void
-- Ends all leases. Attempts stay counted.
UPDATE {table}
SET {state} = '{waiting}', available_at = {oldest_first}, lease_token = NULL
WHERE available_at > :now AND available_at <= :until AND lease_token IS NOT NULL AND {oldest_first} <= :now

-- name: next_available
-- When the next row is available.
SELECT MIN(available_at) AS at FROM {table} WHERE available_at IS NOT NULL

-- name: next_available_after
-- When the next row is available that was not available at an instant.
SELECT MIN(available_at) AS at FROM {table} WHERE available_at > :now

-- name: due
-- Locks and returns the rows that have been due longest, up to a limit, as `claim` does, but without a lease.
SELECT {columns} FROM {table}
WHERE available_at <= :now
ORDER BY available_at
LIMIT :limit
/* skip locked */

-- name: due_of_tenant
-- Locks and returns the oldest due rows of one tenant, up to a limit, as `claim_of_tenant` does, but without a lease. Only
-- the index of each tenant's rows has this order: planners would else use the other one, and read the rows of all tenants.
SELECT {columns} FROM {table}
WHERE tenant_id = :tenant_id AND available_at <= :now
ORDER BY available_at, {rest_of_key}
LIMIT :limit
/* skip locked */

-- name: due_by_key
-- Locks and returns a due row, unless another transaction has locked it. COALESCE keeps planners from the partial indexes.
SELECT {columns} FROM {table}
WHERE {key_is} AND COALESCE(available_at <= :now, FALSE)
/* skip locked */
