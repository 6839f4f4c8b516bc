-- name: add
-- Writes a long text.
INSERT INTO long_texts (owner, tenant_id, text_id, text) VALUES (:owner, :tenant_id, :text_id, :text)
ON CONFLICT (owner, tenant_id, text_id) DO UPDATE SET text = excluded.text

-- name: load
-- Returns a long text.
SELECT tenant_id, text_id, text FROM /* each of many */ long_texts
WHERE owner = :owner AND tenant_id = :tenant_id AND text_id = :text_id

-- name: delete
-- Deletes a long text.
DELETE FROM long_texts WHERE owner = :owner AND tenant_id = :tenant_id AND text_id = :text_id

-- name: delete_of_deleted
-- Deletes the long text of a row that does not exist any more.
DELETE FROM long_texts
WHERE owner = :owner AND tenant_id = :tenant_id AND text_id = :text_id
    AND NOT EXISTS (SELECT 1 FROM {owner} WHERE tenant_id = :tenant_id AND {text_id} = :text_id)
