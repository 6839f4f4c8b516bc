-- Jobs of which an event waits to be written to the outbox: a command may make 10,000 jobs ready, and its transaction must be short.
-- The event is JobReady, or JobSkipped if the job is skipped.
-- The keys have the collation "C": see 0005_engine.postgres.sql.
CREATE TABLE run_announcements (
    tenant_id TEXT COLLATE "C" NOT NULL,
    deferred_at BIGINT NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL,
    job_name TEXT COLLATE "C" NOT NULL,
    caused_by TEXT,  -- the id of the command that made the job ready or skipped it
    outputs_share INTEGER NOT NULL CHECK (outputs_share > 0),  -- how many bytes of outputs a JobReady has at most
    PRIMARY KEY (tenant_id, deferred_at, run_id, job_name)
);
