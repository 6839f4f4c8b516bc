-- name: page_end
-- The instant at which the next page of rows ends; no row if it is the last page. Reads the index alone.
SELECT {instant} AS at FROM {table} WHERE {instant} > :after ORDER BY {instant} LIMIT 1 OFFSET {page}

-- name: find_wrong
-- Returns a row if a page has rows whose instant is wrong.
SELECT 1 AS one FROM {table} WHERE {instant} > :after AND {instant} <= :until AND ({is_wrong})
ORDER BY {instant} LIMIT 1

-- name: repair
-- Corrects the rows of a page whose instant is wrong. Returns a row for each.
WITH wrong AS MATERIALIZED (
    SELECT rowid AS place FROM {table} WHERE {instant} > :after AND {instant} <= :until AND ({is_wrong})
    /* skip locked */
)
UPDATE {table} SET {repair} WHERE rowid IN (SELECT place FROM wrong)
RETURNING 1 AS one
