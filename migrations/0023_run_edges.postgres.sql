-- One row for the edges of a job instead of one for each edge: a StartRun may have 100,000 needs, and its transaction must be short.

-- A running instance of the previous version may be adding needs. This waits for its transactions: needs that they commit after the
-- copy has begun would be dropped with the table.
LOCK TABLE run_needs IN ACCESS EXCLUSIVE MODE;

-- Edges. A row has the edges of one job of a run, as JSON: the names of jobs by what a failure means. A job without edges has no row.
-- The key has the collation "C": see 0005_engine.postgres.sql.
-- {"skip": ["lint", "test"], "run": ["deploy"]}
CREATE TABLE run_edges (
    tenant_id TEXT COLLATE "C" NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL,
    job_name TEXT COLLATE "C" NOT NULL,
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
    SELECT tenant_id, run_id, job_name, CAST(json_object_agg(if_failed, names) AS TEXT) AS needs, CAST(NULL AS TEXT) AS needed_by
    FROM (
        SELECT tenant_id, run_id, job_name, if_failed, json_agg(upstream_name) AS names
        FROM run_needs
        GROUP BY tenant_id, run_id, job_name, if_failed
    ) AS lists
    GROUP BY tenant_id, run_id, job_name
    UNION ALL
    SELECT tenant_id, run_id, upstream_name, NULL, CAST(json_object_agg(if_failed, names) AS TEXT)
    FROM (
        SELECT tenant_id, run_id, upstream_name, if_failed, json_agg(job_name) AS names
        FROM run_needs
        GROUP BY tenant_id, run_id, upstream_name, if_failed
    ) AS lists
    GROUP BY tenant_id, run_id, upstream_name
) AS edges
GROUP BY tenant_id, run_id, job_name;

DROP TABLE run_needs;
