"""Which broker a URL is about."""

from urllib.parse import urlsplit

_BROKERS = {
    **dict.fromkeys(("nats", "tls"), "nats"),
    **dict.fromkeys(("redis", "rediss", "valkey", "valkeys"), "redis"),
    **dict.fromkeys(("amqp", "amqps"), "rabbitmq"),
}
"""The broker of each scheme."""


def broker_of(url: str) -> str | None:
    """Return the broker that the scheme of a URL names: `nats`, `redis` or `rabbitmq`; None if the URL is none.

    Only a number, that of a database, can be behind the address of a Redis server.
    """
    try:
        parts = urlsplit(url)
        has_address = parts.hostname and parts.port != 0
    except ValueError:  # an impossible port or IPv6 address
        return None
    broker = _BROKERS.get(parts.scheme) if has_address else None
    database = parts.path.strip("/")
    if broker == "redis" and (parts.query or (database and not database.isdecimal())):
        return None
    return broker
