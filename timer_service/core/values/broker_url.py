"""Which broker a URL is about."""

from urllib.parse import urlsplit

_BROKERS = {
    **dict.fromkeys(("nats", "tls"), "nats"),
    **dict.fromkeys(("redis", "rediss", "valkey", "valkeys"), "redis"),
    **dict.fromkeys(("amqp", "amqps"), "rabbitmq"),
}
"""The broker of each scheme."""


def broker_of(url: str) -> str | None:
    """Return the broker that the scheme of a URL names: `nats`, `redis` or `rabbitmq`; None if the URL is none."""
    try:
        parts = urlsplit(url)
        return _BROKERS.get(parts.scheme) if parts.hostname and parts.port != 0 else None
    except ValueError:  # an impossible port or IPv6 address
        return None
