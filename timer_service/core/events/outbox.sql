-- name: add
-- Adds an event, unless an event with its id is there. Returns the key of an event that was added.
INSERT INTO outbox (
    tenant_id, event_id, message, topic, body, large_body, traceparent, tracestate, added_at, ordinal, state, available_at
)
VALUES (
    :tenant_id, :event_id, :message, :topic, :body, :large_body, :traceparent, :tracestate, :at, :ordinal, 'Waiting',
    :available_at
)
ON CONFLICT (tenant_id, event_id) DO NOTHING
RETURNING tenant_id, event_id

-- name: add_dead_letter
-- Adds a dead letter, unless it is there. Returns the key of one that was added.
INSERT INTO dead_letters (
    tenant_id, letter_id, message, body, large_body, headers, added_at, ordinal, state, available_at
)
VALUES (:tenant_id, :letter_id, :message, :body, :large_body, :headers, :at, :ordinal, 'Waiting', :available_at)
ON CONFLICT (tenant_id, letter_id) DO NOTHING
RETURNING tenant_id, letter_id

-- name: find
-- The state of one event.
SELECT tenant_id, event_id, state FROM outbox WHERE tenant_id = :tenant_id AND event_id = :event_id

-- name: find_waiting
-- Returns a tenant if it has an event that was available at an instant, and is neither claimed nor tried again later.
SELECT tenant_id FROM outbox
WHERE tenant_id = :tenant_id AND added_at <= :at AND available_at <= :at
ORDER BY added_at, ordinal
LIMIT 1

-- name: requeue
-- Returns a buried event to Waiting, with no attempts counted.
UPDATE outbox
SET state = 'Waiting', attempt = 0, last_error = NULL,
    available_at = CASE WHEN added_at > :now THEN added_at ELSE :now END
WHERE tenant_id = :tenant_id AND event_id = :event_id

-- name: buried_page
-- The next buried events of a tenant, oldest first, with the start of each body: a body may have 1 MiB.
SELECT tenant_id, event_id, SUBSTR({body}, 1, 4000) AS head, added_at, attempt, last_error
FROM outbox
WHERE tenant_id = :tenant_id AND state = 'Buried' AND (added_at, event_id) > (:added_at, :event_id)
ORDER BY added_at, event_id
LIMIT :limit
