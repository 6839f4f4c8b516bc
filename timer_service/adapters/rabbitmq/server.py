"""Where a server is, and the login at it."""

from urllib.parse import parse_qs, urlsplit

from timer_service import rabbit_client
from timer_service.core.values.errors import StartError

_STREAM_PORTS = {"amqp": 5552, "amqps": 5551}


class Server(rabbit_client.Server):
    """The server of a URL such as `amqps://user:password@host:5671/vhost?stream_port=5551`."""

    def __init__(self, url: str, read_login: rabbit_client.ReadLogin = dict) -> None:
        """See `RabbitBroker.connect`. Raises `StartError`."""
        parts = urlsplit(url)
        try:
            super().__init__(url, read_login)
            self.stream_port = int(parse_qs(parts.query).get("stream_port", [_STREAM_PORTS[parts.scheme]])[0])
        except ValueError:
            raise StartError("TIMER_BROKER_URL must be like amqp://host:5672/vhost?stream_port=5552") from None
