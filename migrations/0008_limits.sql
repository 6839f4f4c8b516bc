-- What the limits of the tenants count. See timer_service/core/limits/quotas.py.

-- Used by `sum_pending`.
CREATE INDEX runs_with_pending ON runs (tenant_id, pending_bytes) WHERE pending_bytes > 0;
