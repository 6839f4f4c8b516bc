-- Jobs of which an event waits to be written to the outbox: a command may make 10,000 jobs ready, and its transaction must be short.
-- The event is JobReady, or JobSkipped if the job is skipped.
CREATE TABLE run_announcements (
    tenant_id TEXT NOT NULL,
    available_at BIGINT NOT NULL,  -- when it was written, or when it is tried again
    run_id TEXT NOT NULL,
    job_name TEXT NOT NULL,
    deferred_at BIGINT NOT NULL,
    caused_by TEXT,  -- the id of the command that made the job ready or skipped it
    outputs_share INTEGER NOT NULL CHECK (outputs_share > 0),  -- how many bytes of outputs a JobReady has at most
    last_error TEXT,
    PRIMARY KEY (tenant_id, available_at, run_id, job_name)
);

-- Used by `next_available` and the clock repair. It has the whole key, because planners also use it for single rows.
CREATE INDEX run_announcements_available ON run_announcements (available_at, tenant_id, run_id, job_name);
