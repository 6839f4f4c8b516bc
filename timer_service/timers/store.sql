-- name: find
SELECT tenant_id, service_call_id, state, due_at, data, correlation_id, causation_id, traceparent, tracestate,
    event_id, registered_at, position_epoch, position_sequence
FROM timer_schedules
WHERE tenant_id = :tenant_id AND service_call_id = :service_call_id

-- name: put
INSERT INTO timer_schedules (
    tenant_id, service_call_id, state, due_at, data, correlation_id, causation_id, traceparent, tracestate,
    event_id, registered_at, position_epoch, position_sequence, available_at
) VALUES (
    :tenant_id, :service_call_id, :state, :due_at, :data, :correlation_id, :causation_id, :traceparent, :tracestate,
    :event_id, :registered_at, :position_epoch, :position_sequence, :available_at
)
ON CONFLICT (tenant_id, service_call_id) DO UPDATE SET
    state = excluded.state, due_at = excluded.due_at, data = excluded.data,
    correlation_id = excluded.correlation_id, causation_id = excluded.causation_id,
    traceparent = excluded.traceparent, tracestate = excluded.tracestate,
    event_id = excluded.event_id, registered_at = excluded.registered_at,
    position_epoch = excluded.position_epoch, position_sequence = excluded.position_sequence,
    available_at = excluded.available_at, lease_token = NULL, attempt = 0, last_error = NULL
WHERE timer_schedules.state <> 'Reached'
    AND (timer_schedules.position_epoch, timer_schedules.position_sequence)
        < (excluded.position_epoch, excluded.position_sequence)

-- name: advance
UPDATE timer_schedules
SET position_epoch = :position_epoch, position_sequence = :position_sequence
WHERE tenant_id = :tenant_id AND service_call_id = :service_call_id
    AND (position_epoch, position_sequence) < (:position_epoch, :position_sequence)
