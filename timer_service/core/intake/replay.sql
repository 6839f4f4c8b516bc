-- name: newest_handled
-- When the broker stored the newest command that was handled.
SELECT last_stored_at FROM command_streams ORDER BY epoch DESC LIMIT 1
