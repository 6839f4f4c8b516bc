-- name: page_end
-- The instant at which the next page of rows ends; no row if it is the last page. Reads the index alone.
SELECT {instant} AS at FROM {table} WHERE {instant} > :after ORDER BY {instant} LIMIT 1 OFFSET {page}

-- name: find_wrong
-- The rows of a page whose instant is wrong, up to a limit.
SELECT {key} FROM {table}
WHERE {instant} > :after AND {instant} <= :until AND ({is_wrong})
ORDER BY {instant}{then}
LIMIT :limit

-- name: repair
-- Corrects a row whose instant is still wrong. The COALESCE hides from planners that the index of the instant has the row.
UPDATE {table} SET {repair}
WHERE {key_is} AND COALESCE({is_wrong}, FALSE)
