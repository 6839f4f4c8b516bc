-- How many bytes of events each tenant with a limit has used. See timer_service/core/limits/event_allowances.py.
CREATE TABLE event_allowances (
    tenant_id TEXT COLLATE BINARY NOT NULL PRIMARY KEY,
    used BIGINT NOT NULL CHECK (used >= 0),  -- at `counted_at`; they come back evenly until `empty_at`
    counted_at BIGINT NOT NULL,
    empty_at BIGINT NOT NULL CHECK (empty_at >= counted_at)
);

-- Used by `delete_empty`.
CREATE INDEX event_allowances_empty ON event_allowances (empty_at);
