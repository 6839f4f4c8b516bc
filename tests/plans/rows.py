"""Rows of every table, for query plans on PostgreSQL. The parameter of each insert is how many."""

ROWS = (
    """
INSERT INTO timer_schedules (
    tenant_id, service_call_id, state, due_at, event_id, registered_at, reached_at, cancelled_at,
    position_epoch, position_sequence, available_at
)
SELECT 'tenant-' || (n % 50), 'call-' || n, state, n, 'event-' || n, 0,
    CASE WHEN state = 'Reached' THEN n END, CASE WHEN state = 'Cancelled' THEN n END,
    1, n, CASE WHEN state = 'Scheduled' THEN n END
FROM (
    SELECT n, (ARRAY['Scheduled', 'Reached', 'Scheduled', 'Cancelled', 'Failed'])[1 + n % 5] AS state
    FROM generate_series(1, $1::bigint) AS n
) AS rows
    """,
    """
INSERT INTO timer_cancellations (
    tenant_id, position_epoch, position_sequence, prefix, command_id, next_call_id, available_at
)
SELECT 'tenant-' || (n % 50), 1, n, 'call-' || n, 'command-' || n, 'call-' || n, n
FROM generate_series(1, $1::bigint) AS n
    """,
    """
INSERT INTO outbox (tenant_id, event_id, message, body, added_at, ordinal, state, available_at)
SELECT 'tenant-' || (n % 50), md5(n::text), 'hello', '{}', n, n, CASE WHEN n % 9 = 0 THEN 'Buried' ELSE 'Waiting' END,
    CASE WHEN n % 9 <> 0 THEN n END
FROM generate_series(1, $1::bigint) AS n
    """,
    """
INSERT INTO work_items (tenant_id, work_item_id, created_at)
SELECT 'tenant-' || (n % 50), 'item-' || n, n FROM generate_series(1, $1::bigint) AS n
    """,
    """
INSERT INTO work_item_events (
    tenant_id, work_item_id, event_id, to_status, occurred_at, recorded_at, position_epoch, position_sequence,
    evaluate_at, evaluated_to
)
SELECT 'tenant-' || (n % 50), 'item-' || (n % 1000), 'event-' || n, 'blocked', n, n, 1, n,
    CASE WHEN n % 9 = 0 THEN n END, ''
FROM generate_series(1, $1::bigint) AS n
    """,
    """
INSERT INTO work_signals (
    tenant_id, signal_id, status, work_item_id, trigger_kind, trigger_spec, created_at, last_fired_at, ended_at,
    defined_epoch, defined_sequence, since_epoch, since_sequence
)
SELECT 'tenant-' || (n % 50), 'signal-' || n, status, 'item-' || (n % 1000), 'event', '{}', n, n,
    CASE WHEN status IN ('resolved', 'cancelled') THEN n END, 1, n, 1, n
FROM (
    SELECT n, (ARRAY['active', 'paused', 'fired', 'resolved', 'active', 'cancelled'])[1 + n % 6] AS status
    FROM generate_series(1, $1::bigint) AS n
) AS rows
    """,
    """
INSERT INTO work_signal_firings (
    tenant_id, firing_id, signal_id, dedupe_key, status, due_at, created_at, defined_epoch, defined_sequence,
    position_epoch, position_sequence, settled_at, available_at
)
SELECT 'tenant-' || (n % 50), 'firing-' || n, 'signal-' || (n / 2), 'event-' || n, status, n, n, 1, 1, 1, n,
    CASE WHEN status <> 'queued' THEN n END, CASE WHEN status = 'queued' THEN n END
FROM (
    SELECT n, (ARRAY['queued', 'enqueued', 'failed'])[1 + n % 3] AS status FROM generate_series(1, $1::bigint) AS n
) AS rows
    """,
    """
INSERT INTO schedules (
    tenant_id, schedule_id, status, every_ms, zone, jitter_ms, catch_up, late_by_ms, catch_up_limit, data_size,
    after_at, slot_at, available_at, fired_count, is_paused, created_at, created_epoch, created_sequence, defined_epoch,
    defined_sequence
)
SELECT 'tenant-' || n % 100, 'schedule-' || n, 'active', 60000, 'UTC', 0, 'last', 60000, 100, 0,
    n, n + 1, n + 1, 0, 0, n, 1, n, 1, n
FROM generate_series(1, $1::bigint) AS n
    """,
    """
INSERT INTO schedules (
    tenant_id, schedule_id, status, data_size, after_at, fired_count, is_paused, created_at, ended_at, created_epoch,
    created_sequence, defined_epoch, defined_sequence
)
SELECT 'tenant-' || n % 100, 'deleted-' || n, 'deleted', 0, n, 0, 0, n, n, 1, n, 0, 0
FROM generate_series(1, $1::bigint) AS n
    """,
    """
INSERT INTO schedule_backfills (
    tenant_id, position_epoch, position_sequence, schedule_id, from_at, to_at, slot_limit, after_at, fired_count,
    skipped_count, every_ms, zone, jitter_ms, data_size, available_at, causation_id
)
SELECT 'tenant-' || n % 100, 1, n, 'schedule-' || n % 1000, 0, n, 9, -1, 0, 0, 60000, 'UTC', 0, 0, n, 'id'
FROM generate_series(1, $1::bigint) AS n
    """,
    """
INSERT INTO runs (
    tenant_id, run_id, status, digest, open_jobs, created_at, sweep_at, position_epoch, position_sequence
)
SELECT 'tenant-7', 'run-' || n, 'running', '', 20000, n, n, 1, n FROM generate_series(1, $1::bigint) AS n
    """,
    """
INSERT INTO runs (tenant_id, run_id, created_at, settled_at, position_epoch, position_sequence)
SELECT 'tenant-7', 'named-' || n, n, n, 0, 0 FROM generate_series(1, $1::bigint) AS n
    """,
    """
INSERT INTO run_jobs (
    tenant_id, run_id, job_name, status, payload_bytes, open_needs, open_groups
)
SELECT 'tenant-7', 'tenant-7', 'job-' || n, 'pending', 0, 1, 0 FROM generate_series(1, $1::bigint) AS n
    """,
    """
INSERT INTO run_edges (tenant_id, run_id, job_name, needs, needed_by)
SELECT 'tenant-7', 'tenant-7', 'job-' || n, '{"skip":["job-0"]}', '{"run":["job-99999"]}'
FROM generate_series(1, $1::bigint) AS n
    """,
    """
INSERT INTO run_announcements (tenant_id, available_at, run_id, job_name, deferred_at, outputs_share)
SELECT 'tenant-7', n, 'tenant-7', 'job-' || n, n, 1 FROM generate_series(1, $1::bigint) AS n
    """,
    """
INSERT INTO workflows (
    tenant_id, workflow_id, type, queue, status, due_at, available_at, digest, created_at, deadline_at, overdue_at,
    concurrency_key, concurrency_limit, when_busy,
    input_bytes, blocks, started_epoch, started_sequence, cancelled_epoch, cancelled_sequence
)
SELECT 'tenant-' || n % 100, 'w-' || n, 'type-' || n % 3, 'default', 'waiting', n, n, 'd', n,
    CASE WHEN n % 10 = 0 THEN n END, CASE WHEN n % 10 = 0 THEN n END, CASE WHEN n % 10 = 0 THEN 'key-' || n % 1000 END,
    CASE WHEN n % 10 = 0 THEN 1 END, CASE WHEN n % 10 = 0 THEN 'queue' END,
    CASE WHEN n % 10 = 0 THEN 2000 ELSE 0 END, CASE WHEN n % 100 = 0 THEN 3 ELSE 0 END, 1, n, 0, 0
FROM generate_series(1, $1::bigint) AS n
    """,
    """
INSERT INTO workflows (
    tenant_id, workflow_id, type, queue, status, digest, created_at, ended_at, failure_code,
    started_epoch, started_sequence, cancelled_epoch, cancelled_sequence
)
SELECT 'tenant-' || n % 100, 'e-' || n, 'type-' || n % 3, 'default',
    CASE n % 20 WHEN 0 THEN 'failed' ELSE 'completed' END, 'd', n, n, CASE n % 20 WHEN 0 THEN 'CRASHED' END,
    1, n, 0, 0
FROM generate_series(1, $1::bigint) AS n
    """,
    """
INSERT INTO workflows (
    tenant_id, workflow_id, type, queue, status, digest, due_at, created_at,
    concurrency_key, concurrency_limit, when_busy, key_place, key_due_at,
    started_epoch, started_sequence, cancelled_epoch, cancelled_sequence
)
SELECT 'tenant-' || n % 100, 'q-' || n, 'type-' || n % 3, 'default', 'queued', 'd', n, n,
    'key-' || n % 1000, 1, 'replace', n, CASE WHEN n % 10 = 0 THEN n END, 1, n, 0, 0
FROM generate_series(1, $1::bigint) AS n
    """,
    """
INSERT INTO workflow_effects (tenant_id, workflow_id, name, n, kind, seq, status)
SELECT 'tenant-' || n % 100, 'w-' || n % 1000, 'step', n / 1000, 'step',
    CASE WHEN n % 7 > 0 THEN n / 1000 + 1 END, 'done'
FROM generate_series(1, $1::bigint) AS n
    """,
    """
INSERT INTO workflow_messages (
    tenant_id, workflow_id, name, position_epoch, position_sequence, message_id, size, sent_at, taken_at
)
SELECT 'tenant-' || n % 100, 'w-' || n % 1000, 'approval', 1, n, 'm-' || n, 0, n, CASE WHEN n % 2 = 0 THEN n END
FROM generate_series(1, $1::bigint) AS n
    """,
    """
INSERT INTO workflow_data (tenant_id, workflow_id, input)
SELECT 'tenant-' || n % 100, 'w-' || n, '1' FROM generate_series(1, $1::bigint) AS n
    """,
    """
INSERT INTO dead_letters (tenant_id, letter_id, message, body, headers, added_at, ordinal, state, available_at)
SELECT 'tenant-' || (n % 50), md5(n::text), 'hello', '', '{}', n, n, 'Waiting', n
FROM generate_series(1, $1::bigint) AS n
    """,
    """
INSERT INTO parked_events (
    tenant_id, consumer, event_id, event_type, about, reason, attempts, parked_at, size, body
)
SELECT 'tenant-' || (n % 50), 'consumer-' || (n % 3), 'event-' || n, 'JobReady', '{}', 'reason', 1, n, 2, '{}'
FROM generate_series(1, $1::bigint) AS n
    """,
    """
INSERT INTO workflow_workers (tenant_id, worker_id, queue, types, slots, first_seen_at, seen_at)
SELECT 'tenant-' || (n % 50), 'worker-' || n, 'default', '[]', 1, n, n FROM generate_series(1, $1::bigint) AS n
    """,
)
PENDING_ROWS = """
INSERT INTO timer_schedules (
    tenant_id, service_call_id, state, due_at, event_id, registered_at, position_epoch, position_sequence, available_at
)
SELECT 'tenant', 'call-' || n, 'Scheduled', 1, 'event-' || n, 0, 1, n, 1 FROM generate_series(1, $1::bigint) AS n
"""
"""Timers of one tenant of which none has fired."""
WAITING_SCHEDULES = """
INSERT INTO schedules (
    tenant_id, schedule_id, status, every_ms, zone, jitter_ms, catch_up, late_by_ms, catch_up_limit, data_size,
    after_at, slot_at, available_at, fired_count, is_paused, created_at, created_epoch, created_sequence, defined_epoch,
    defined_sequence
)
SELECT CASE WHEN n % 10 = 0 THEN 'tenant-2' ELSE 'tenant-1' END, 'waiting-' || n, 'active', 60000, 'UTC', 86400000,
    'last', 60000, 100, 0,
    0, 1, CASE WHEN n % 10 = 0 THEN 400 ELSE 86400000 + n END, 0, 0, n, 1, n, 1, n
FROM generate_series(1, $1::bigint) AS n
"""
"""Many schedules of one tenant that wait for their jitter, and a tenth as many due ones of another tenant."""
