-- Texts of rows that have more than 1,000 characters: of events, dead letters and the data of timers. Without them the rows are
-- narrow, and no change of a row writes its text again. See timer_service/core/due/long_texts.py.
-- The keys have the collation "C": see 0005_engine.postgres.sql.
CREATE TABLE long_texts (
    owner TEXT COLLATE "C" NOT NULL,  -- the table of the row
    tenant_id TEXT COLLATE "C" NOT NULL,
    text_id TEXT COLLATE "C" NOT NULL,  -- the id of the event, or of the dead letter
    text TEXT NOT NULL,
    PRIMARY KEY (owner, tenant_id, text_id)
) WITH (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
