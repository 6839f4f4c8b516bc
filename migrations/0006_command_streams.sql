-- What the database knows about the broker. See timer_service/core/intake/command_streams.py.

-- Command streams. A row is one part of the history of a command stream that the service has met. The part begins at a sequence,
-- and the commands from there on have the row's epoch. A stream that is new, recreated or rolled back begins a new part.
-- `last_sequence` is the highest sequence of the part that was handled. `last_stored_at` is when the broker stored that command, in
-- nanoseconds of the broker's clock. By both the service recognizes the stream again.
CREATE TABLE command_streams (
    epoch BIGINT PRIMARY KEY,
    created TEXT NOT NULL,  -- when the broker created the stream, as the broker writes it
    first_sequence BIGINT NOT NULL CHECK (first_sequence >= 1),
    last_sequence BIGINT NOT NULL,
    last_stored_at BIGINT NOT NULL,
    CHECK (last_sequence >= first_sequence - 1)
);

-- The database itself. The only row has an identifier that is chosen when the database is created. The consumer of the command
-- stream carries it too, so that a service with another database is refused. If `replay_since` is set, the service reads the
-- command stream again from this instant when it starts.
CREATE TABLE installation (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    database_id TEXT NOT NULL,
    replay_since BIGINT
);
