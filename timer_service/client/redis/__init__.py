"""The client over Redis or Valkey: what it needs from a broker, made of streams, consumer groups and channels."""
