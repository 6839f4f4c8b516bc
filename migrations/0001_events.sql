-- The schema of both engines. TEXT COLLATE BINARY compares by bytes, as Python does: a new version of the system's collations cannot
-- break an index. `/* postgres: ... */` is read by PostgreSQL only. The tables with settings of storage are written often: vacuum runs
-- early and in small steps, and the fillfactor leaves room for the next version of a row on the same page.

-- The outbox. A row is one event to publish. It is written in the same transaction as the state that it announces. The relay
-- deletes a row after it publishes it. A row that cannot be published stays, in state Buried. See timer_service/core/events/outbox.py.
CREATE TABLE outbox (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    event_id TEXT COLLATE BINARY NOT NULL,
    message TEXT NOT NULL,
    topic TEXT,
    body TEXT,  -- NULL: it is in long_texts
    large_body INTEGER CHECK (large_body > 1000),  -- how many characters it has there
    traceparent TEXT,
    tracestate TEXT,
    added_at BIGINT NOT NULL,
    ordinal BIGINT NOT NULL CHECK (ordinal >= 0),  -- the order of rows that one instance added at one instant
    state TEXT NOT NULL CHECK (state IN ('Waiting', 'Buried')),
    available_at BIGINT,
    lease_token TEXT,
    attempt INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    last_error TEXT,
    PRIMARY KEY (tenant_id, event_id),
    CHECK ((state = 'Waiting') = (available_at IS NOT NULL)),
    CHECK (available_at >= added_at),
    CHECK (lease_token IS NULL OR state = 'Waiting'),
    CHECK ((body IS NULL) = (large_body IS NOT NULL))
) /* postgres: WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0) */;

-- Used by the statements of lease.sql that select by available_at, such as `claim` and `next_available`, and by the gauges.
CREATE INDEX outbox_available ON outbox (available_at, ordinal) WHERE available_at IS NOT NULL;

-- Used by `pending_tenants` and `claim_of_tenant`, which share a claim between tenants.
CREATE INDEX outbox_pending ON outbox (tenant_id, added_at, ordinal) WHERE available_at IS NOT NULL;

-- Used by `page_of_buried` and by the gauge that counts buried events.
CREATE INDEX outbox_buried ON outbox (tenant_id, added_at, event_id) WHERE state = 'Buried';

-- Events that a consumer of a user gave up. A row stays until the event is resubmitted or dropped, and is deleted when it is old. Rows
-- are never updated. The body is the last column, so that SQLite finds the others without it. See timer_service/events/store.py.
CREATE TABLE parked_events (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    consumer TEXT COLLATE BINARY NOT NULL,
    event_id TEXT COLLATE BINARY NOT NULL,
    event_type TEXT NOT NULL,
    about TEXT NOT NULL,  -- the short texts at the start of the payload, as JSON; a list does not read the body
    reason TEXT NOT NULL,
    attempts INTEGER NOT NULL CHECK (attempts >= 1),
    parked_at BIGINT NOT NULL,
    size INTEGER NOT NULL CHECK (size > 0),  -- the number of characters of `body`, which a command does not read to decide
    body TEXT NOT NULL,  -- the whole event as JSON
    PRIMARY KEY (tenant_id, consumer, event_id)
);

-- Used by `page` for all consumers, and by the operations page.
CREATE INDEX parked_events_by_age ON parked_events (tenant_id, parked_at, event_id, consumer);

-- Used by `page` for one consumer. The condition holds for all rows. Only `page` has it, so that no search by the key uses this index.
CREATE INDEX parked_events_of_consumer ON parked_events (tenant_id, consumer, parked_at, event_id) WHERE size > 0;

-- Used by `delete_old` and by the gauge that counts parked events.
CREATE INDEX parked_events_old ON parked_events (parked_at);

-- Dead letters to publish. They have a table of their own, so that no event waits for them while their stream is full. They are
-- tried until they are stored, so none is ever buried.
CREATE TABLE dead_letters (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    letter_id TEXT COLLATE BINARY NOT NULL,
    message TEXT NOT NULL,
    body TEXT,  -- in base64; NULL: it is in long_texts
    large_body INTEGER CHECK (large_body > 1000),  -- how many characters it has there
    headers TEXT NOT NULL,  -- as JSON
    added_at BIGINT NOT NULL,
    ordinal BIGINT NOT NULL CHECK (ordinal >= 0),  -- the order of rows that one instance added at one instant
    state TEXT NOT NULL CHECK (state = 'Waiting'),
    available_at BIGINT CHECK (available_at IS NOT NULL),  -- not NOT NULL: then SQLite uses no index with this condition
    lease_token TEXT,
    attempt INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    last_error TEXT,
    PRIMARY KEY (tenant_id, letter_id),
    CHECK (available_at >= added_at),
    CHECK ((body IS NULL) = (large_body IS NOT NULL))
) /* postgres: WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0) */;

-- Used like `outbox_available`.
CREATE INDEX dead_letters_available ON dead_letters (available_at, ordinal) WHERE available_at IS NOT NULL;

-- Used like `outbox_pending`.
CREATE INDEX dead_letters_pending ON dead_letters (tenant_id, added_at, ordinal) WHERE available_at IS NOT NULL;

-- Texts of rows that have more than 1,000 characters: of events, dead letters and the data of timers. Without them the rows are
-- narrow, and no change of a row writes its text again. See timer_service/core/due/long_texts.py.
CREATE TABLE long_texts (
    owner TEXT COLLATE BINARY NOT NULL,  -- the table of the row
    tenant_id TEXT COLLATE BINARY NOT NULL,
    text_id TEXT COLLATE BINARY NOT NULL,  -- the id of the event, or of the dead letter
    text TEXT NOT NULL,
    PRIMARY KEY (owner, tenant_id, text_id)
) /* postgres: WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0) */;
