-- name: find_item
-- Returns the key of a work item if it exists.
SELECT tenant_id, work_item_id FROM work_items
WHERE tenant_id = :tenant_id AND work_item_id = :work_item_id

-- name: put_item
-- Writes the status of a work item, which may be new.
INSERT INTO work_items (tenant_id, work_item_id, status, created_at)
VALUES (:tenant_id, :work_item_id, :status, :now)
ON CONFLICT (tenant_id, work_item_id) DO UPDATE SET status = excluded.status

-- name: find_event
-- Returns the key of a transition if it is stored already.
SELECT tenant_id, work_item_id, event_id FROM work_item_events
WHERE tenant_id = :tenant_id AND work_item_id = :work_item_id AND event_id = :event_id

-- name: add_event
-- Inserts a transition.
INSERT INTO work_item_events ({columns}) VALUES ({values})

-- name: note_evaluated
-- Writes how far the evaluation of a transition has come.
UPDATE work_item_events
SET evaluate_at = :evaluate_at, evaluated_to = :evaluated_to
WHERE tenant_id = :tenant_id AND work_item_id = :work_item_id AND event_id = :event_id

-- name: find
-- Returns a signal.
SELECT {columns}
FROM /* each of many */ work_signals
WHERE tenant_id = :tenant_id AND signal_id = :signal_id

-- name: lock_free_key
-- Locks a signal and returns its key, unless another transaction has locked it.
SELECT tenant_id, signal_id FROM work_signals WHERE tenant_id = :tenant_id AND signal_id = :signal_id
/* skip locked */

-- name: pause
-- Pauses an active signal, one of whose firings was given up.
UPDATE work_signals SET status = 'paused', last_error = :error
WHERE tenant_id = :tenant_id AND signal_id = :signal_id AND COALESCE(status, '') = 'active'  -- by the key, never by status

-- name: waiting
-- Returns the next active signals of a work item after a signal id. A long trigger is NULL.
SELECT {columns}
FROM work_signals
WHERE tenant_id = :tenant_id AND work_item_id = :work_item_id AND status = 'active' AND signal_id > :after
ORDER BY signal_id
LIMIT :limit

-- name: put
-- Inserts or replaces a signal.
INSERT INTO work_signals ({columns}) VALUES ({values})
ON CONFLICT (tenant_id, signal_id) DO UPDATE SET {updates}

-- name: page
-- Returns the next signals of a tenant after a signal id.
SELECT {columns}
FROM work_signals
WHERE tenant_id = :tenant_id AND {where} AND signal_id > :after
ORDER BY signal_id
LIMIT :limit

-- name: ended
-- Returns the keys of signals that ended before an instant, and locks them.
SELECT tenant_id, signal_id FROM work_signals
WHERE ended_at < :before ORDER BY ended_at LIMIT :limit /* skip locked */

-- name: delete
-- Deletes a signal if it has no firings.
DELETE FROM work_signals
WHERE tenant_id = :tenant_id AND signal_id = :signal_id
    AND NOT EXISTS (
        SELECT 1 FROM work_signal_firings AS rest WHERE rest.tenant_id = :tenant_id AND rest.signal_id = :signal_id
    )

-- name: delete_events
-- Deletes evaluated transitions that were recorded before an instant, oldest first.
DELETE FROM work_item_events
WHERE (tenant_id, work_item_id, event_id) IN (
    WITH picked AS MATERIALIZED (  -- locked, so that no instance waits for the retention of another one
        SELECT tenant_id, work_item_id, event_id FROM work_item_events
        WHERE evaluate_at IS NULL AND recorded_at < :before ORDER BY recorded_at LIMIT :limit
        /* skip locked */
    )
    SELECT tenant_id, work_item_id, event_id FROM picked
)

-- name: count_open
-- Counts the signals of a tenant that have not ended, at most `most`.
SELECT COUNT(*) AS used FROM (
    SELECT 1 AS one FROM work_signals
    WHERE tenant_id = :tenant_id AND status IN ('active', 'paused', 'fired') AND trigger_kind <> ''
    LIMIT :most
) AS counted
