-- name: find
-- The size of a parked event.
SELECT tenant_id, consumer, event_id, size FROM parked_events
WHERE tenant_id = :tenant_id AND consumer = :consumer AND event_id = :event_id

-- name: load
-- A parked event with its body.
SELECT tenant_id, consumer, event_id, event_type, about, reason, attempts, parked_at, size, body
FROM /* each of many */ parked_events
WHERE tenant_id = :tenant_id AND consumer = :consumer AND event_id = :event_id

-- name: delete
-- Deletes a parked event.
DELETE FROM parked_events WHERE tenant_id = :tenant_id AND consumer = :consumer AND event_id = :event_id

-- name: add
-- Adds a parked event.
INSERT INTO parked_events (
    tenant_id, consumer, event_id, event_type, about, reason, attempts, parked_at, size, body
)
VALUES (:tenant_id, :consumer, :event_id, :event_type, :about, :reason, :attempts, :parked_at, :size, :body)

-- name: page
-- The next parked events of a tenant or of one consumer, oldest first, without their bodies.
SELECT tenant_id, consumer, event_id, event_type, about, reason, attempts, parked_at
FROM parked_events
WHERE {where}
ORDER BY parked_at, event_id{then}
LIMIT :limit

-- name: count
-- How many parked events a tenant has. Counting stops above the limit.
SELECT COUNT(*) AS used FROM (SELECT 1 AS one FROM parked_events WHERE tenant_id = :tenant_id LIMIT :most) AS counted

-- name: delete_old
-- Deletes events that were parked before an instant, oldest first.
DELETE FROM parked_events
WHERE (tenant_id, consumer, event_id) IN (
    WITH picked AS MATERIALIZED (  -- locked, so that an event that a command is resubmitting is left to it
        SELECT tenant_id, consumer, event_id FROM parked_events
        WHERE parked_at < :before
        ORDER BY parked_at LIMIT :limit
        /* skip locked */
    )
    SELECT tenant_id, consumer, event_id FROM picked
)
