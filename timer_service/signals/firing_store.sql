-- name: add
-- Inserts a firing. A stored firing that failed is queued again: that of an instant, when its signal is activated.
INSERT INTO work_signal_firings (
    tenant_id, firing_id, signal_id, defined_epoch, defined_sequence, dedupe_key, work_item_id, status, due_at,
    created_at, position_epoch, position_sequence, correlation_id, causation_id, traceparent, tracestate, available_at
) VALUES (
    :tenant_id, :firing_id, :signal_id, :defined_epoch, :defined_sequence, :dedupe_key, :work_item_id, 'queued', :due_at,
    :now, :position_epoch, :position_sequence, :correlation_id, :causation_id, :traceparent, :tracestate, :due_at
)
ON CONFLICT (tenant_id, firing_id) DO UPDATE
SET status = 'queued', available_at = excluded.available_at, settled_at = NULL, attempt = 0, last_error = NULL
WHERE work_signal_firings.status = 'failed'

-- name: fail_unsettled
-- Sets the unsettled firings of one definition of a signal to failed.
UPDATE work_signal_firings
SET status = 'failed', settled_at = :now, available_at = NULL, last_error = :error
WHERE tenant_id = :tenant_id AND signal_id = :signal_id AND status = 'queued'
    AND defined_epoch = :defined_epoch AND defined_sequence = :defined_sequence

-- name: settle
-- Settles a due firing.
UPDATE work_signal_firings
SET status = :status, settled_at = :at, available_at = NULL, last_error = :error, attempt = attempt + 1
WHERE tenant_id = :tenant_id AND firing_id = :firing_id

-- name: retry
-- Counts an attempt of a due firing, which waits until the next one.
UPDATE work_signal_firings SET available_at = :at, last_error = :error, attempt = attempt + 1
WHERE tenant_id = :tenant_id AND firing_id = :firing_id

-- name: page_of_signal
-- Returns the next firings of a signal after a cursor, oldest first.
SELECT tenant_id, firing_id, signal_id, dedupe_key, work_item_id, status, due_at, created_at, settled_at, attempt,
    last_error
FROM work_signal_firings
WHERE tenant_id = :tenant_id AND signal_id = :signal_id AND (created_at, firing_id) > (:after_at, :after_id)
ORDER BY created_at, firing_id
LIMIT :limit

-- name: tasks_of_item
-- Returns the next tasks of a work item after a cursor, oldest first: firings whose signal has fired.
SELECT tenant_id, firing_id, signal_id, work_item_id, settled_at
FROM work_signal_firings
WHERE tenant_id = :tenant_id AND work_item_id = :work_item_id AND status = 'enqueued'
    AND (settled_at, firing_id) > (:after_at, :after_id)
ORDER BY settled_at, firing_id
LIMIT :limit

-- name: delete_of_signal
-- Deletes some of the firings of a signal.
DELETE FROM work_signal_firings
WHERE (tenant_id, firing_id) IN (
    WITH picked AS MATERIALIZED (
        SELECT tenant_id, firing_id FROM work_signal_firings
        WHERE tenant_id = :tenant_id AND signal_id = :signal_id LIMIT :limit
        /* skip locked */
    )
    SELECT tenant_id, firing_id FROM picked
)

-- name: delete_settled
-- Deletes firings without a task that were settled before an instant, oldest first.
DELETE FROM work_signal_firings
WHERE (tenant_id, firing_id) IN (
    WITH picked AS MATERIALIZED (  -- locked, so that a firing that a command has just queued again stays
        SELECT tenant_id, firing_id FROM work_signal_firings
        WHERE settled_at < :before AND (status = 'failed' OR work_item_id IS NULL)
        ORDER BY settled_at LIMIT :limit
        /* skip locked */
    )
    SELECT tenant_id, firing_id FROM picked
)
