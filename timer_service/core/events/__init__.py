"""From a committed event to the broker: outbox, relay and settlement."""
