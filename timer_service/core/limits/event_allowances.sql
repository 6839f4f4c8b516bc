-- name: create
-- Adds a tenant that has used nothing, unless it is there.
INSERT INTO event_allowances (tenant_id, used, counted_at, empty_at)
VALUES (:tenant_id, 0, 0, 0)
ON CONFLICT (tenant_id) DO NOTHING

-- name: lock
-- What a tenant has used.
SELECT tenant_id, used, counted_at, empty_at FROM event_allowances WHERE tenant_id = :tenant_id
/* for update */

-- name: over
-- The tenants of which nothing is left only after an instant.
SELECT tenant_id, used, counted_at, empty_at FROM event_allowances WHERE empty_at >= :since

-- name: save
-- Writes what a tenant has used.
UPDATE event_allowances
SET used = :used, counted_at = :counted_at, empty_at = :empty_at
WHERE tenant_id = :tenant_id

-- name: used
-- What a tenant has used at an instant, as `Level.used_at`.
SELECT COALESCE(MAX(
    CASE
        WHEN empty_at <= :now THEN 0
        WHEN counted_at >= :now THEN used
        ELSE CAST(used * (1.0 * (empty_at - :now) / (empty_at - counted_at)) AS BIGINT)
    END
), 0) AS used
FROM event_allowances WHERE tenant_id = :tenant_id

-- name: delete_empty
-- Deletes tenants that have nothing used since an instant, up to a limit.
DELETE FROM event_allowances WHERE tenant_id IN (
    SELECT tenant_id FROM event_allowances WHERE empty_at < :before ORDER BY empty_at LIMIT :limit
    /* skip locked */
)
