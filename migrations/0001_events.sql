-- The outbox: events to publish, written in the same transaction as the state they announce (see timer_service/core/outbox.py).
-- A published row is deleted; one that can't be published stays, Buried.
CREATE TABLE outbox (
    tenant_id TEXT NOT NULL,
    event_id TEXT NOT NULL,
    message TEXT NOT NULL,
    body TEXT NOT NULL,
    traceparent TEXT,
    tracestate TEXT,
    added_at BIGINT NOT NULL,
    ordinal BIGINT NOT NULL CHECK (ordinal >= 0),  -- orders what was added at one instant by one instance
    state TEXT NOT NULL CHECK (state IN ('Waiting', 'Buried')),
    available_at BIGINT,
    lease_token TEXT,
    attempt INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    last_error TEXT,
    PRIMARY KEY (tenant_id, event_id),
    CHECK ((state = 'Waiting') = (available_at IS NOT NULL)),
    CHECK (available_at >= added_at),
    CHECK (lease_token IS NULL OR state = 'Waiting')
);

-- The claim and the loop's next wake.
CREATE INDEX outbox_available ON outbox (available_at, ordinal) WHERE available_at IS NOT NULL;

-- The fair claim.
CREATE INDEX outbox_pending ON outbox (tenant_id, added_at, ordinal) WHERE available_at IS NOT NULL;

-- The gauge and the list of what could not be published.
CREATE INDEX outbox_buried ON outbox (tenant_id, added_at, event_id) WHERE state = 'Buried';
