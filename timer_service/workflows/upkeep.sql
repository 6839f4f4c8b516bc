-- name: settled
-- Locks and returns the workflows that ended before an instant, oldest first. Skips locked ones, and those whose key is to be
-- looked at.
SELECT tenant_id, workflow_id, effects, messages FROM workflows
WHERE ended_at IS NOT NULL AND ended_at < :before AND key_due_at IS NULL
ORDER BY ended_at LIMIT :limit
/* skip locked */

-- name: delete_effects
-- Deletes some of the effects of a workflow.
DELETE FROM workflow_effects
WHERE (tenant_id, workflow_id, name, n) IN (
    SELECT tenant_id, workflow_id, name, n FROM workflow_effects
    WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id LIMIT :limit
)

-- name: delete_messages
-- Deletes some of the messages to a workflow.
DELETE FROM workflow_messages
WHERE (tenant_id, workflow_id, name, position_epoch, position_sequence) IN (
    SELECT tenant_id, workflow_id, name, position_epoch, position_sequence FROM workflow_messages
    WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id LIMIT :limit
)

-- name: delete_data
-- Deletes the texts of a workflow.
DELETE FROM workflow_data WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id

-- name: delete_workflow
-- Deletes a workflow if no effect and no message belongs to it.
DELETE FROM workflows
WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id
    AND NOT EXISTS (
        SELECT 1 FROM workflow_effects AS rest WHERE rest.tenant_id = :tenant_id AND rest.workflow_id = :workflow_id
    )
    AND NOT EXISTS (
        SELECT 1 FROM workflow_messages AS rest WHERE rest.tenant_id = :tenant_id AND rest.workflow_id = :workflow_id
    )

-- name: mark
-- Marks a workflow that is not deleted yet, so that no RetryWorkflow continues it without the rows that are gone.
UPDATE workflows SET is_deleting = 1 WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id

-- name: delete_workers
-- Deletes workers that were last seen before an instant, oldest first.
DELETE FROM workflow_workers
WHERE (tenant_id, worker_id) IN (
    WITH picked AS MATERIALIZED (
        SELECT tenant_id, worker_id FROM workflow_workers WHERE seen_at < :before ORDER BY seen_at LIMIT :limit
        /* skip locked */
    )
    SELECT tenant_id, worker_id FROM picked
)
