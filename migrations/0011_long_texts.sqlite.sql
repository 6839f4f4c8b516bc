-- Texts of rows that have more than 1,000 characters: of events, dead letters and the data of timers. Without them the rows are
-- narrow, and no change of a row writes its text again. See timer_service/core/due/long_texts.py.
CREATE TABLE long_texts (
    owner TEXT NOT NULL,  -- the table of the row
    tenant_id TEXT NOT NULL,
    text_id TEXT NOT NULL,  -- the id of the event, or of the dead letter
    text TEXT NOT NULL,
    PRIMARY KEY (owner, tenant_id, text_id)
);
