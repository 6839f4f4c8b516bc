-- Used by `stale_tenants` and `stale_jobs_of_tenant`: tenants take turns, so the many stale jobs of one delay no other.
CREATE INDEX run_jobs_stale_of_tenant ON run_jobs (tenant_id, stale_at) WHERE stale_at > 0;
