-- name: find
-- Returns an effect, without its texts.
SELECT {short}
FROM /* each of many */ workflow_effects
WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id AND name = :name AND n = :n

-- name: find_unseen
-- Returns the effects of a workflow that its function has not got, without their texts.
SELECT {short}
FROM /* each of many */ workflow_effects
WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id AND seq IS NULL

-- name: find_seen
-- Returns the effect with a number, without its texts.
SELECT {short}
FROM /* each of many */ workflow_effects
WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id AND seq = :seq

-- name: find_result
-- Returns the result of an effect.
SELECT tenant_id, workflow_id, name, n, result
FROM /* each of many */ workflow_effects
WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id AND name = :name AND n = :n

-- name: find_all
-- Returns all effects of a workflow with their results.
SELECT {columns}, result
FROM /* each of many */ workflow_effects
WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id

-- name: page_seen
-- Returns the next effects that the function got, in their order, with their texts.
SELECT {columns}, result
FROM workflow_effects
WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id AND seq > :seq
ORDER BY seq LIMIT :limit

-- name: page_unseen
-- Returns the next effects that the function has not got, in the order of their keys, with their texts.
SELECT {columns}, result
FROM workflow_effects
WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id AND seq IS NULL AND (name, n) > (:name, :n)
ORDER BY name, n LIMIT :limit

-- name: write
-- Writes an effect, which was loaded without its texts. A stored result stays, and so does the error of the last failure.
INSERT INTO workflow_effects ({columns}, result) VALUES ({values}, :result)
ON CONFLICT (tenant_id, workflow_id, name, n) DO UPDATE SET {updates},
    error = CASE WHEN excluded.failures > 0 AND excluded.status <> 'done'
        THEN COALESCE(excluded.error, workflow_effects.error) ELSE excluded.error END,
    result = COALESCE(excluded.result, workflow_effects.result)

-- name: is_awaited
-- Returns the name of a message if a workflow waits for one.
SELECT tenant_id, workflow_id, name
FROM /* each of many */ workflow_effects
WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id AND seq IS NULL
    AND name = :name AND kind = 'message' AND status = 'open'

-- name: find_waits
-- Returns the names of the first messages for which a workflow waits.
SELECT tenant_id, workflow_id, name
FROM workflow_effects
WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id AND seq IS NULL AND kind = 'message' AND status = 'open'
ORDER BY name, n LIMIT :limit

-- name: find_message_id
-- Returns a message id if the workflow has a message with it.
SELECT tenant_id, workflow_id, message_id
FROM /* each of many */ workflow_messages
WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id AND message_id = :message_id

-- name: next_messages
-- Returns the next messages of a name, without their data, in the order of their positions.
SELECT tenant_id, workflow_id, name, position_epoch, position_sequence, sent_at, size
FROM workflow_messages
WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id AND name = :name AND taken_at IS NULL
ORDER BY position_epoch, position_sequence LIMIT :limit

-- name: insert_message
-- Stores a message.
INSERT INTO workflow_messages (
    tenant_id, workflow_id, name, position_epoch, position_sequence, message_id, data, size, sent_at
)
VALUES (:tenant_id, :workflow_id, :name, :position_epoch, :position_sequence, :message_id, :data, :size, :sent_at)

-- name: copy_message
-- Stores the data of a message as the result of the wait that takes it.
UPDATE workflow_effects SET result = (
    SELECT data FROM workflow_messages AS message
    WHERE message.tenant_id = :tenant_id AND message.workflow_id = :workflow_id AND message.name = :name
        AND message.position_epoch = :position_epoch AND message.position_sequence = :position_sequence
)
WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id AND name = :name AND n = :n

-- name: take_message
-- Marks a message as taken. It stays without its data.
UPDATE workflow_messages SET data = NULL, taken_at = :now
WHERE tenant_id = :tenant_id AND workflow_id = :workflow_id AND name = :name
    AND position_epoch = :position_epoch AND position_sequence = :position_sequence
