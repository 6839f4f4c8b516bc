"""The HTTP pages /livez, /readyz and /metrics. The event loop of the service serves them."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from timer_service.core.ports.health import Health
from timer_service.core.values.errors import StartError

_GRACE_SECONDS = 1
_CLOSE_SECONDS = 0.5
_CONNECTION_SECONDS = 10
"""How long a connection lasts at most, with its request and the response."""
_RESTS = 9
"""After a text of the metrics, no other one is made for this many times as long."""
_LONGEST_REST_SECONDS = 1
"""If a text took longer, the process was stopped meanwhile, as by `docker pause`. Requests must not wait for that."""
_MOST_FORMATS = 4
"""In how many formats the metrics are asked for at once. A client can invent versions; more get the usual format."""
MOST_CONNECTIONS = 100
"""How many connections are open at most. One more closes the oldest."""


def http_app(
    registry: CollectorRegistry,
    *,
    health: Callable[[], Mapping[str, Health]],
    stalled: Callable[[], list[str]],
    more: Sequence[Route] = (),
) -> Starlette:
    """Return the application that serves the pages, and the routes in `more`.

    `health` returns the health of each flow and of the service, by name. `stalled` returns the names of the parts that
    hang.
    """

    async def livez(_: Request) -> Response:
        parts = stalled()
        return JSONResponse({"stalled": parts}, 503 if parts else 200)

    async def readyz(_: Request) -> Response:
        reasons = {name: each.reason for name, each in health().items()}
        body = {name: reason or "ok" for name, reason in reasons.items()}
        return JSONResponse(body, 503 if any(reasons.values()) else 200)

    texts = _MetricsTexts(registry)

    async def metrics(request: Request) -> Response:
        text, content_type = await texts.read(request.headers.get("Accept", ""))
        return Response(text, headers={"Content-Type": content_type})

    routes = [Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)]
    return Starlette(routes=[*routes, *more])


class _MetricsTexts:
    """The metrics as text. Many requests at once take a tenth of the event loop: they share a text.

    A text is never older than its request.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._next: dict[str, asyncio.Task[bytes]] = {}
        """The texts that are not begun, by content type."""
        self._turn = asyncio.Lock()
        self._rests_until = 0.0

    async def read(self, accept: str) -> tuple[bytes, str]:
        """Return the text in a format that a header `Accept` asks for, and its content type."""
        try:
            generate, content_type = choose_encoder(accept)
        except (ValueError, TypeError):  # a version that is none
            generate, content_type = choose_encoder("")
        if content_type not in self._next and len(self._next) >= _MOST_FORMATS:
            generate, content_type = choose_encoder("")
        text = self._next.get(content_type)
        if text is None:
            text = self._next[content_type] = asyncio.create_task(self._write(generate, content_type))
        return await asyncio.shield(text), content_type

    async def _write(self, generate: Callable[[CollectorRegistry], bytes], content_type: str) -> bytes:
        async with self._turn:
            await asyncio.sleep(self._rests_until - time.monotonic())
            del self._next[content_type]
            began = time.monotonic()
            try:
                return generate(self._registry)
            finally:
                ended = time.monotonic()
                self._rests_until = ended + min(_RESTS * (ended - began), _LONGEST_REST_SECONDS)


class HttpServer(NamedTuple):
    """A running server."""

    port: int
    task: asyncio.Task[None]
    """It ends when the block ends, or if the server fails."""


@asynccontextmanager
async def serve_http(app: Starlette, host: str, port: int) -> AsyncIterator[HttpServer]:
    """Serve `app` in this event loop while the block runs. Port 0 means any free port.

    A connection carries one request. Connections that send or read slowly do not keep out others: they are closed after
    ten seconds, or earlier if there are too many. Raises `StartError` if the address cannot be used.
    """
    open_connections: dict[_Connection, None] = {}
    with _listen(host, port) as listener:
        server = _Server(
            uvicorn.Config(
                app,
                http=partial(_Connection, open_connections),  # type: ignore[arg-type]  # uvicorn only calls it
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",  # anybody can send requests that are no HTTP, and each would be a line
                access_log=False,
                proxy_headers=False,
                server_header=False,
                headers=[("Connection", "close")],
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        serving = asyncio.create_task(server.serve([listener]), name="http")
        try:
            yield HttpServer(listener.getsockname()[1], serving)
        finally:
            server.should_exit = True
            await asyncio.wait([serving], timeout=_GRACE_SECONDS + _CLOSE_SECONDS)
            serving.cancel()


class _Connection(H11Protocol):
    """A connection that ends after some seconds, even if its peer sends or reads nothing."""

    def __init__(self, others: "dict[_Connection, None]", *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._open = others  # oldest first
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._end = self.loop.call_later(_CONNECTION_SECONDS, transport.abort)
        self._open[self] = None
        if len(self._open) > MOST_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._open.pop(self, None)
        if self._end is not None:
            self._end.cancel()


class _Server(uvicorn.Server):
    """A server that leaves SIGINT and SIGTERM to the service."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    """Open the listening socket. uvicorn itself would exit the process if the port is taken."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address, family=family)
    except OSError as error:
        raise StartError(f"cannot serve HTTP at {host}:{port} (TIMER_HTTP_HOST, TIMER_HTTP_PORT): {error}") from error
