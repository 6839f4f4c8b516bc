-- Used by `deadline_tenants` and `past_deadline`: tenants take turns, so the many deadlines of one delay no other.
CREATE INDEX workflows_deadline_of_tenant ON workflows (tenant_id, deadline_at)
WHERE deadline_at IS NOT NULL AND ended_at IS NULL;
