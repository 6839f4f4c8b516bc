-- One row for the edges of a job instead of one for each edge: a StartRun may have 100,000 needs, and its transaction must be short.

-- Edges. A row has the edges of one job of a run, as JSON: the names of jobs by what a failure means. A job without edges has no row.
-- {"skip": ["lint", "test"], "run": ["deploy"]}
CREATE TABLE run_edges (
    tenant_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    job_name TEXT NOT NULL,
    needs TEXT,  -- the jobs that it needs
    needs_size INTEGER NOT NULL CHECK (needs_size >= 0),  -- the number of characters of `needs`, so that a page reads no more than it shows
    needed_by TEXT,  -- the jobs that need it
    PRIMARY KEY (tenant_id, run_id, job_name),
    CHECK (needs IS NOT NULL OR needed_by IS NOT NULL),
    CHECK ((needs IS NULL) = (needs_size = 0))
);

INSERT INTO run_edges (tenant_id, run_id, job_name, needs, needs_size, needed_by)
SELECT tenant_id, run_id, job_name, MAX(needs), COALESCE(LENGTH(MAX(needs)), 0), MAX(needed_by)
FROM (
    SELECT tenant_id, run_id, job_name, json_group_object(if_failed, json(names)) AS needs, NULL AS needed_by
    FROM (
        SELECT tenant_id, run_id, job_name, if_failed, json_group_array(upstream_name) AS names
        FROM run_needs
        GROUP BY tenant_id, run_id, job_name, if_failed
    ) AS lists
    GROUP BY tenant_id, run_id, job_name
    UNION ALL
    SELECT tenant_id, run_id, upstream_name, NULL, json_group_object(if_failed, json(names))
    FROM (
        SELECT tenant_id, run_id, upstream_name, if_failed, json_group_array(job_name) AS names
        FROM run_needs
        GROUP BY tenant_id, run_id, upstream_name, if_failed
    ) AS lists
    GROUP BY tenant_id, run_id, upstream_name
) AS edges
GROUP BY tenant_id, run_id, job_name;

DROP TABLE run_needs;
