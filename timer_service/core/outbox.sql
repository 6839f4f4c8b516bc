-- name: add
INSERT INTO outbox (tenant_id, event_id, message, body, traceparent, tracestate, added_at, state, available_at)
VALUES (:tenant_id, :event_id, :message, :body, :traceparent, :tracestate, :at, 'Waiting', :at)
ON CONFLICT (tenant_id, event_id) DO NOTHING
