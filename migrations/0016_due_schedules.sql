-- Schedules that wait for their jitter are not due, although their slots have come. With their instants in the index, a pass
-- does not step over them. Used by `due_tenants`, which steps from tenant to tenant, and by `due_of_tenant`.
DROP INDEX schedules_due;
CREATE INDEX schedules_due ON schedules (tenant_id, available_at, schedule_id) WHERE available_at IS NOT NULL;
