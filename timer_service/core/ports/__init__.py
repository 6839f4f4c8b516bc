"""What the service needs from a broker, a database, a clock and metrics."""
