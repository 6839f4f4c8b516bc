-- Used by `sum_stored`. Workflows with little data and few effects cost nothing to count.
DROP INDEX workflows_large;
CREATE INDEX workflows_large ON workflows (tenant_id, input_bytes, effect_bytes, message_bytes, effects)
WHERE input_bytes + effect_bytes + message_bytes > 1000 OR effects > 10;
