"""The HTTP pages /livez, /readyz and /metrics. The event loop of the service serves them."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

import uvicorn
from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from timer_service.core.ports.health import Health
from timer_service.core.values.errors import StartError

# Each counter and histogram would have a second series, with the time of its creation.
disable_created_metrics()  # type: ignore[no-untyped-call]
_GRACE_SECONDS = 1
_CLOSE_SECONDS = 0.5
CONNECTION_SECONDS = 10
"""How long a connection lasts at most, with its request and the response."""


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
        hanging = stalled()
        return JSONResponse({"stalled": hanging}, 503 if hanging else 200)

    async def readyz(_: Request) -> Response:
        reasons = {name: each.reason for name, each in health().items()}
        body = {name: reason or "ok" for name, reason in reasons.items()}
        return JSONResponse(body, 503 if any(reasons.values()) else 200)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    routes = [Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)]
    return Starlette(routes=[*routes, *more])


class HttpServer(NamedTuple):
    """A running server."""

    port: int
    task: asyncio.Task[None]
    """It ends when the block ends, or if the server fails."""


@asynccontextmanager
async def serve_http(app: Starlette, host: str, port: int) -> AsyncIterator[HttpServer]:
    """Serve `app` in this event loop while the block runs. Port 0 means any free port.

    A connection carries one request, and is closed after ten seconds. Raises `StartError` if the address cannot be
    used.
    """
    with _listen(host, port) as listener:
        server = _Server(
            uvicorn.Config(
                app,
                http=_Connection,
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

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # `close` would wait until the peer has read the response.
        self._deadline = self.loop.call_later(CONNECTION_SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()


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
