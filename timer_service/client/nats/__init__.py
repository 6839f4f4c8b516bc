"""The client over NATS: what it needs from a broker, made of JetStream and core NATS."""
