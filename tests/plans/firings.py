"""Firings of signals, for query plans."""

ALL_FIRINGS = """
INSERT INTO work_signal_firings (
    tenant_id, firing_id, signal_id, dedupe_key, status, due_at, created_at, defined_epoch, defined_sequence,
    position_epoch, position_sequence, settled_at, available_at
)
SELECT 'tenant-' || (n % 50), 'firing-' || n, 'signal-' || (n / 2), 'event-' || n, status, n, n, 1, 1, 1, n,
    CASE WHEN status <> 'queued' THEN n END, CASE WHEN status = 'queued' THEN n END
FROM (
    SELECT n, (ARRAY['queued', 'enqueued', 'failed'])[1 + n % 3] AS status FROM generate_series(1, $1::bigint) AS n
) AS rows
"""
"""Inserts `$1` firings of 50 tenants, in every status."""
