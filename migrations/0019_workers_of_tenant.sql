-- A tenant has 1,000 workers at most; those that were not seen for longest are deleted. Used by `forget`.
CREATE INDEX workflow_workers_of_tenant ON workflow_workers (tenant_id, seen_at);
