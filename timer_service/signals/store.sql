-- name: add_item
-- Inserts a work item, unless it exists.
INSERT INTO work_items (
    tenant_id, work_item_id, status, created_at, created_epoch, created_sequence, moved_epoch, moved_sequence
) VALUES (
    :tenant_id, :work_item_id, :status, :now, :created_epoch, :created_sequence, :moved_epoch, :moved_sequence
)
ON CONFLICT (tenant_id, work_item_id) DO NOTHING

-- name: find_item
-- Returns a work item and locks it.
SELECT tenant_id, work_item_id, status, created_epoch, created_sequence, moved_epoch, moved_sequence
FROM /* each of many */ work_items
WHERE tenant_id = :tenant_id AND work_item_id = :work_item_id
/* for update */

-- name: put_item
-- Writes the status and the positions of a work item.
UPDATE work_items
SET status = :status, created_epoch = :created_epoch, created_sequence = :created_sequence, moved_epoch = :moved_epoch,
    moved_sequence = :moved_sequence
WHERE tenant_id = :tenant_id AND work_item_id = :work_item_id

-- name: find_event
-- Returns the key of a transition if it is stored already.
SELECT tenant_id, work_item_id, event_id FROM work_item_events
WHERE tenant_id = :tenant_id AND work_item_id = :work_item_id AND event_id = :event_id

-- name: add_event
-- Inserts a transition.
INSERT INTO work_item_events (
    tenant_id, work_item_id, event_id, kind, from_status, to_status, occurred_at, recorded_at, position_epoch,
    position_sequence, correlation_id, causation_id, traceparent, tracestate, evaluate_at, evaluated_to
) VALUES (
    :tenant_id, :work_item_id, :event_id, 'status.transition', :from_status, :to_status, :occurred_at, :recorded_at,
    :position_epoch, :position_sequence, :correlation_id, :causation_id, :traceparent, :tracestate, :evaluate_at, ''
)

-- name: evaluate_again
-- Queues the stored transitions of a work item that are newer than a position, from the first signal on.
UPDATE work_item_events
SET evaluate_at = :now, evaluated_to = ''
WHERE tenant_id = :tenant_id AND work_item_id = :work_item_id AND kind = 'status.transition'
    AND (position_epoch, position_sequence) > (:since_epoch, :since_sequence)

-- name: waiting_tenants
-- Returns the next tenants that have unevaluated transitions. Each tenant takes one look-up in the index.
WITH RECURSIVE waiting (tenant_id, number) AS (
    SELECT MIN(tenant_id), 1 FROM work_item_events WHERE evaluate_at IS NOT NULL AND tenant_id > :after
    UNION ALL
    SELECT (SELECT MIN(tenant_id) FROM work_item_events WHERE evaluate_at IS NOT NULL AND tenant_id > waiting.tenant_id),
        number + 1
    FROM waiting WHERE tenant_id IS NOT NULL AND number < :limit
)
SELECT tenant_id FROM waiting WHERE tenant_id IS NOT NULL

-- name: next_events
-- Returns the unevaluated transitions of a tenant that have waited longest, and locks them.
SELECT tenant_id, work_item_id, event_id, from_status, to_status, occurred_at, recorded_at, position_epoch,
    position_sequence, correlation_id, causation_id, traceparent, tracestate, evaluate_at, evaluated_to
FROM work_item_events
WHERE tenant_id = :tenant_id AND evaluate_at IS NOT NULL
ORDER BY evaluate_at
LIMIT :limit
/* skip locked */

-- name: note_evaluated
-- Writes how far the evaluation of a transition has come.
UPDATE work_item_events
SET evaluate_at = :evaluate_at, evaluated_to = :evaluated_to
WHERE tenant_id = :tenant_id AND work_item_id = :work_item_id AND event_id = :event_id

-- name: find
-- Returns a signal with its history.
SELECT tenant_id, signal_id, status, work_item_id, trigger_kind, trigger_spec, note, created_at, last_fired_at,
    last_error, unused_since, defined_epoch, defined_sequence, since_epoch, since_sequence, history
FROM /* each of many */ work_signals
WHERE tenant_id = :tenant_id AND signal_id = :signal_id

-- name: find_free
-- Locks a signal, unless another transaction has locked it.
SELECT tenant_id, signal_id FROM work_signals
WHERE tenant_id = :tenant_id AND signal_id = :signal_id
/* skip locked */

-- name: waiting
-- Returns the next active signals of a work item after a signal id. A long trigger is NULL.
SELECT tenant_id, signal_id, status, work_item_id, trigger_kind,
    CASE WHEN LENGTH(trigger_spec) <= :longest THEN trigger_spec END AS trigger_spec, note, created_at, last_fired_at,
    last_error, unused_since, defined_epoch, defined_sequence, since_epoch, since_sequence
FROM work_signals
WHERE tenant_id = :tenant_id AND work_item_id = :work_item_id AND status = 'active' AND signal_id > :after
ORDER BY signal_id
LIMIT :limit

-- name: add
-- Inserts a signal, unless it exists.
INSERT INTO work_signals (
    tenant_id, signal_id, status, work_item_id, trigger_kind, trigger_spec, note, created_at, last_fired_at,
    last_error, unused_since, defined_epoch, defined_sequence, since_epoch, since_sequence, history
) VALUES (
    :tenant_id, :signal_id, :status, :work_item_id, :trigger_kind, :trigger_spec, :note, :created_at, :last_fired_at,
    :last_error, :unused_since, :defined_epoch, :defined_sequence, :since_epoch, :since_sequence, :history
)
ON CONFLICT (tenant_id, signal_id) DO NOTHING

-- name: put
-- Writes all columns of a signal.
UPDATE work_signals
SET status = :status, work_item_id = :work_item_id, trigger_kind = :trigger_kind, trigger_spec = :trigger_spec,
    note = :note, created_at = :created_at, last_fired_at = :last_fired_at, last_error = :last_error,
    unused_since = :unused_since, defined_epoch = :defined_epoch, defined_sequence = :defined_sequence,
    since_epoch = :since_epoch, since_sequence = :since_sequence, history = :history
WHERE tenant_id = :tenant_id AND signal_id = :signal_id

-- name: move
-- Writes the columns of a signal that can change without a new definition.
UPDATE work_signals
SET status = :status, last_fired_at = :last_fired_at, last_error = :last_error, unused_since = :unused_since,
    since_epoch = :since_epoch, since_sequence = :since_sequence, history = :history
WHERE tenant_id = :tenant_id AND signal_id = :signal_id

-- name: page
-- Returns the next signals of a tenant after a signal id.
SELECT tenant_id, signal_id, status, work_item_id, trigger_kind, trigger_spec, note, created_at, last_fired_at,
    last_error, unused_since, defined_epoch, defined_sequence, since_epoch, since_sequence
FROM work_signals
WHERE tenant_id = :tenant_id AND {where} AND signal_id > :after
ORDER BY signal_id
LIMIT :limit

-- name: unused
-- Returns the keys of tombstones and ended signals whose last command is older than an instant, and locks them.
SELECT tenant_id, signal_id FROM work_signals
WHERE unused_since < :before ORDER BY unused_since LIMIT :limit /* skip locked */

-- name: delete
-- Deletes a signal if it has no task.
DELETE FROM work_signals
WHERE tenant_id = :tenant_id AND signal_id = :signal_id
    AND NOT EXISTS (
        SELECT 1 FROM work_item_tasks AS rest WHERE rest.tenant_id = :tenant_id AND rest.signal_id = :signal_id
    )

-- name: delete_events
-- Deletes evaluated transitions that were recorded before an instant, oldest first.
DELETE FROM work_item_events
WHERE (tenant_id, work_item_id, event_id) IN (
    WITH picked AS MATERIALIZED (  -- locked, so that a transition that a command has just queued again stays
        SELECT tenant_id, work_item_id, event_id FROM work_item_events
        WHERE evaluate_at IS NULL AND recorded_at < :before ORDER BY recorded_at LIMIT :limit
        /* skip locked */
    )
    SELECT tenant_id, work_item_id, event_id FROM picked
)
