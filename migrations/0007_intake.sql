-- How far the command log has been read, and the commands that wait to be applied. See timer_service/core/intake/.

-- The database itself. The only row has an identifier that is chosen when the database is first used. The broker keeps it with the
-- command log, so that a service with another database is refused.
CREATE TABLE installation (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    database_id TEXT NOT NULL
);

-- The cursor of the command log. A row is one partition of the log; there is one, 0. The transaction that applies commands moves the
-- cursor behind them. Every transaction of the intake raises `revision`, and has no effect if another one was faster.
CREATE TABLE command_log (
    partition_number INTEGER PRIMARY KEY,
    log TEXT NOT NULL,  -- the identity of the log, as the broker names it; empty before it was first opened
    epoch BIGINT NOT NULL,
    sequence BIGINT NOT NULL CHECK (sequence >= 0),  -- of the last command that was applied or stored in waiting_commands
    stored_at BIGINT NOT NULL,  -- when the broker stored that command, in nanoseconds of the broker's clock
    place TEXT NOT NULL,  -- where that command is, as the broker names it, if the sequence does not say it
    revision BIGINT NOT NULL,
    reader TEXT,  -- which process reads; NULL if it has stopped
    reads_until BIGINT NOT NULL  -- until when no other process may read
);

-- Commands that were read and are applied later: those of a tenant with more than its share, and costly ones. A row has commands of
-- one tenant that follow each other, in their order. The first `done` of them are applied.
CREATE TABLE waiting_commands (
    tenant_id TEXT COLLATE BINARY NOT NULL,
    epoch BIGINT NOT NULL,
    first_sequence BIGINT NOT NULL,
    number_of_commands INTEGER NOT NULL,
    done INTEGER NOT NULL DEFAULT 0,
    size BIGINT NOT NULL,
    available_at BIGINT NOT NULL,
    attempt INTEGER NOT NULL CHECK (attempt >= 0),  -- how often the next command has failed alone
    last_error TEXT,
    tried INTEGER NOT NULL DEFAULT 0 CHECK (tried >= 0),  -- how many of the next commands are being applied after a crash
    deaths INTEGER NOT NULL DEFAULT 0 CHECK (deaths >= 0),  -- how many processes have ended while they applied the next command alone
    commands BYTEA NOT NULL,  -- the last column, so that SQLite reads the others without it
    PRIMARY KEY (tenant_id, epoch, first_sequence),
    CHECK (done >= 0 AND done < number_of_commands)
);

-- What a worker asks that waits for older commands.
CREATE INDEX waiting_commands_held_back ON waiting_commands (tenant_id, available_at) WHERE available_at > 0;
