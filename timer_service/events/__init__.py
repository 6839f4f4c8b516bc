"""Events that could not be published: seen, and put back. A slice over the core's own outbox."""
