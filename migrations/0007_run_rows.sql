-- How many rows a run has: its jobs, needs, groups and needs of groups. A transaction reads runs with a bounded number of rows together.
ALTER TABLE runs ADD COLUMN row_count INTEGER NOT NULL DEFAULT 0 CHECK (row_count >= 0);

UPDATE runs SET row_count =
    (SELECT COUNT(*) FROM run_jobs AS job WHERE job.tenant_id = runs.tenant_id AND job.run_id = runs.run_id)
    + (SELECT COUNT(*) FROM run_needs AS need WHERE need.tenant_id = runs.tenant_id AND need.run_id = runs.run_id)
    + (SELECT COUNT(*) FROM run_groups AS part WHERE part.tenant_id = runs.tenant_id AND part.run_id = runs.run_id)
    + (SELECT COUNT(*) FROM run_group_needs AS need WHERE need.tenant_id = runs.tenant_id AND need.run_id = runs.run_id);
