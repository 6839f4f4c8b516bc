-- Up to which command no limit refuses anything, because the commands are handled again. See timer_service/core/limits/quotas.py.
ALTER TABLE installation ADD COLUMN exempt_epoch BIGINT NOT NULL DEFAULT 0;

ALTER TABLE installation ADD COLUMN exempt_sequence BIGINT NOT NULL DEFAULT 0;
