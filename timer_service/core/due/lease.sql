-- name: claim
-- Claims the first available rows of all tenants or of one, up to a limit, under one token.
WITH picked AS MATERIALIZED (  -- evaluated once: if a plan ran it for each row, it would lock more rows than the limit
    SELECT rowid AS place FROM {table}
    WHERE {which} AND available_at <= :now
    ORDER BY {by}{then}
    LIMIT :limit
    /* skip locked */
)
UPDATE {table}
SET available_at = :until, attempt = attempt + 1, lease_token = :token
WHERE rowid IN (SELECT place FROM picked)
RETURNING {claimed}, attempt, lease_token, available_at

-- name: claim_alone
-- Like `claim`, on SQLite, where no other process claims. It finds rows by their row ids, and `read_claim` returns them.
UPDATE {table}
SET available_at = :until, attempt = attempt + 1, lease_token = :token
WHERE rowid IN (SELECT rowid FROM {table} WHERE available_at <= :now ORDER BY available_at{then} LIMIT :limit)

-- name: read_claim
-- Returns the rows of a claim.
SELECT {claimed}, attempt, lease_token, available_at
FROM {table}
WHERE available_at = :until AND lease_token = :token

-- name: complete
-- Settles a held row as done.
{complete}
WHERE {key_is} AND lease_token = :token

-- name: complete_claim
-- Settles all rows of one claim as done.
{complete}
WHERE available_at = :until AND lease_token = :token

-- name: complete_claim_shared
-- Like `complete_claim`, but skips rows that another transaction has locked. It never waits, so it cannot deadlock.
WITH held AS MATERIALIZED (
    SELECT rowid AS place FROM {table} WHERE available_at = :until AND lease_token = :token
    /* skip locked */
)
{complete}
WHERE rowid IN (SELECT place FROM held)

-- name: still_held
-- Returns the key of a held row. Does not lock it.
SELECT {key} FROM {table} WHERE {key_is} AND lease_token = :token

-- name: retry
-- Returns a held row to the waiting state until its next attempt. `uncounted` attempts are taken back. If the clock was set
-- back since the claim, the row is not yet due, and its next attempt is when it is.
UPDATE {table}
SET available_at = CASE WHEN :at < {oldest_first} THEN {oldest_first} ELSE :at END, lease_token = NULL,
    last_error = :error, attempt = attempt - :uncounted
WHERE {key_is} AND lease_token = :token

-- name: bury
-- Gives up a held row: it stays, and is not claimed again.
UPDATE {table}
SET state = '{buried}', available_at = NULL, lease_token = NULL, last_error = :error
WHERE {key_is} AND lease_token = :token

-- name: release
-- Returns a held row to its old place. The attempt does not count.
UPDATE {table}
SET available_at = {oldest_first}, lease_token = NULL, attempt = attempt - 1
WHERE {key_is} AND lease_token = :token

-- name: void
-- Ends all leases. Attempts stay counted.
UPDATE {table}
SET available_at = {oldest_first}, lease_token = NULL
WHERE available_at > :now AND available_at <= :until AND lease_token IS NOT NULL
