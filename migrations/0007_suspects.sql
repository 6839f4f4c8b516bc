-- Commands that may have ended the process of the service. See timer_service/core/intake/suspects.py.

-- A row is written before such a command is handled, alone, and deleted when the process has survived that. `begun` is how often
-- the handling has begun. If the process dies too often while it handles the command, the command is rejected and its row stays.
CREATE TABLE suspects (
    epoch BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    begun INTEGER NOT NULL CHECK (begun >= 1),
    PRIMARY KEY (epoch, sequence)
);
