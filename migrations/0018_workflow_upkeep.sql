-- What the upkeep of workflows needs: the clock repair, retention, and the count of leases that ran out.

-- The instant, by the service's clock, from which the other instants of a row count: available_at of a workflow, and due_at of an
-- effect. NULL: they do not depend on this clock. If it is in the future, the clock was ahead when it was written.
ALTER TABLE workflows ADD COLUMN counted_from BIGINT;
ALTER TABLE workflow_effects ADD COLUMN counted_from BIGINT;
CREATE INDEX workflows_counted ON workflows (counted_from) WHERE counted_from IS NOT NULL;
CREATE INDEX workflow_effects_counted ON workflow_effects (counted_from) WHERE counted_from IS NOT NULL;

-- 1: retention has deleted some of the rows of a workflow. It never continues.
ALTER TABLE workflows ADD COLUMN is_deleting INTEGER NOT NULL DEFAULT 0
    CHECK (is_deleting = 0 OR (is_deleting = 1 AND ended_at IS NOT NULL));

-- The attempt whose lease was renewed last, so that a worker has run the function; 0: none since the last report.
ALTER TABLE workflows ADD COLUMN renewed INTEGER NOT NULL DEFAULT 0 CHECK (renewed >= 0);
