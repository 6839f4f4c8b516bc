"""The HTTP pages /livez, /readyz and /metrics. The event loop of the service serves them."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from timer_service.core.errors import StartError
from timer_service.core.health import Health

_GRACE_SECONDS = 1


def http_app(
    registry: CollectorRegistry,
    *,
    health: Callable[[], Mapping[str, Health]],
    stalled: Callable[[], list[str]],
) -> Starlette:
    """Return the application that serves the pages.

    `health` returns the health of each part, by name. `stalled` returns the names of the stalled loops.
    """

    async def livez(_: Request) -> Response:
        loops = stalled()
        return JSONResponse({"stalled": loops}, 503 if loops else 200)

    async def readyz(_: Request) -> Response:
        reasons = {part: each.reason for part, each in health().items()}
        body = {part: reason or "ok" for part, reason in reasons.items()}
        return JSONResponse(body, 503 if any(reasons.values()) else 200)

    async def metrics(request: Request) -> Response:
        generate, content_type = choose_encoder(request.headers.get("Accept", ""))
        return Response(generate(registry), headers={"Content-Type": content_type})

    return Starlette(routes=[Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)])


@asynccontextmanager
async def serve_http(app: Starlette, host: str, port: int) -> AsyncIterator[int]:
    """Serve `app` in this event loop while the block runs, and yield the port. Port 0 means any free port.

    Raises `StartError` if the address cannot be used.
    """
    with _listen(host, port) as listener:
        server = _Server(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        serving = asyncio.create_task(server.serve([listener]), name="http")
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


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
