-- name: defer
-- Inserts an announcement. One of an earlier attempt of the same instant is replaced.
INSERT INTO run_announcements (tenant_id, available_at, run_id, job_name, deferred_at, attempt, caused_by, outputs_share)
VALUES (:tenant_id, :available_at, :run_id, :job_name, :deferred_at, :attempt, :caused_by, :outputs_share)
ON CONFLICT (tenant_id, available_at, run_id, job_name)
DO UPDATE SET attempt = excluded.attempt, caused_by = excluded.caused_by, outputs_share = excluded.outputs_share

-- name: delete
-- Deletes an announcement.
DELETE FROM run_announcements
WHERE tenant_id = :tenant_id AND available_at = :available_at AND run_id = :run_id AND job_name = :job_name
