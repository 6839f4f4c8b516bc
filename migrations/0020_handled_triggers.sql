-- The TriggerSchedules that were handled, so that one that is delivered again does not fire again. A row is the position of a
-- command. See docs/decisions/0036-keep-a-position-for-each-fact-of-a-schedule.md.
CREATE TABLE handled_triggers (
    position_epoch BIGINT NOT NULL,
    position_sequence BIGINT NOT NULL,
    handled_at BIGINT NOT NULL,
    PRIMARY KEY (position_epoch, position_sequence)
);

-- Used by `delete_old`, the retention of these rows.
CREATE INDEX handled_triggers_by_time ON handled_triggers (handled_at);
