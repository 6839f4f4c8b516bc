-- What a replay of commands needs to know. See timer_service/core/intake/replay.py.

-- Identifies the request of a replay. The consumer carries it too, so that each request begins one replay.
ALTER TABLE installation ADD COLUMN replay_id TEXT;

-- When the broker stored the oldest command that was not settled at the last look, in Unix milliseconds of the broker's clock. NULL:
-- there was none.
ALTER TABLE installation ADD COLUMN unsettled_since BIGINT;
