-- Used by `deadline_tenants` and `find_overdue`: tenants take turns, so the many deadlines of one delay no other.
CREATE INDEX workflows_deadline_of_tenant ON workflows (tenant_id, overdue_at)
WHERE overdue_at IS NOT NULL AND ended_at IS NULL;
