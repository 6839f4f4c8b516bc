"""From the command log to a commit: reading, decoding, applying, and replies."""
