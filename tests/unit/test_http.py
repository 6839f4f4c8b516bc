import asyncio
import http.client
import json
import socket
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.values.errors import StartError
from timer_service.http import http_app, serve_http

HOST = "127.0.0.1"


def pages(
    registry: CollectorRegistry | None = None,
    *,
    health: Mapping[str, Health] | None = None,
    stalled: list[str] | None = None,
) -> Starlette:
    return http_app(registry or CollectorRegistry(), health=lambda: health or {}, stalled=lambda: stalled or [])


async def get(port: int, path: str, host: str = HOST) -> tuple[int, str, str]:
    """Return the status, the content type and the body of a page."""

    def read() -> tuple[int, str, str]:
        with closing(http.client.HTTPConnection(host, port, timeout=5)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.headers["Content-Type"], answer.read().decode()

    return await asyncio.to_thread(read)


@pytest.mark.parametrize(
    ("broker", "status", "text"),
    [
        (HEALTHY, 200, "ok"),
        (Health.down("disconnected"), 503, "disconnected"),
        (Health(usable=True, reason="the broker denies a permission"), 503, "the broker denies a permission"),
    ],
)
async def test_readiness(broker: Health, status: int, text: str) -> None:
    """Readiness is 200 while every part is healthy. The body has the reason of each part that is not."""
    async with serve_http(pages(health={"broker": broker, "database": HEALTHY}), HOST, 0) as (port, _):
        found, _, body = await get(port, "/readyz")
    assert (found, json.loads(body)) == (status, {"broker": text, "database": "ok"})


@pytest.mark.parametrize(("stalled", "status"), [([], 200), (["timers"], 503)])
async def test_liveness(stalled: list[str], status: int) -> None:
    """Liveness is 200 while no loop is stalled, even if a part is down. The body names the stalled loops."""
    async with serve_http(pages(health={"broker": Health.down("away")}, stalled=stalled), HOST, 0) as (port, _):
        found, _, body = await get(port, "/livez")
    assert (found, json.loads(body)) == (status, {"stalled": stalled})


async def test_metrics() -> None:
    """The page has exactly the metrics of the given registry, in the Prometheus text format, without `_created`."""
    registry = CollectorRegistry()
    Counter("eggs", "Eggs.", registry=registry).inc(3)
    async with serve_http(pages(registry), HOST, 0) as (port, _):
        status, content_type, body = await get(port, "/metrics")
    assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    families = {family.name: family for family in text_string_to_metric_families(body)}
    assert families["eggs"].samples[0].value == 3
    assert set(families) == {"eggs"}


async def test_port_in_use() -> None:
    """A port that is in use is a start error that names the setting."""
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=rf"{HOST}:{port} .*TIMER_HTTP_PORT"):
            async with serve_http(pages(), HOST, port):
                pass


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_ipv6() -> None:
    """The pages can be served at an IPv6 address."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 loopback here")
    async with serve_http(pages(), "::1", 0) as (port, _):
        assert (await get(port, "/livez", "::1"))[0] == 200


async def test_stops_quickly_despite_open_connections() -> None:
    """A connection without a request, or with half of one, does not delay the stop. Both are closed."""
    loop = asyncio.get_running_loop()
    async with serve_http(pages(), HOST, 0) as (port, _):
        idle = await asyncio.open_connection(HOST, port)
        half = await asyncio.open_connection(HOST, port)
        half[1].write(b"GET /livez HTTP/1.1\r\nHo")
        assert (await get(port, "/livez"))[0] == 200
        stopping_at = loop.time()
    assert loop.time() - stopping_at < 1
    for reader, writer in (idle, half):
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_what_is_no_http_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A client that can connect cannot fill the log with lines."""
    async with serve_http(pages(), HOST, 0) as (port, _):
        for sent in (b"\x16\x03\x01\r\n\r\n", b"GET /livez HTTP/1.1\r\n\r\n"):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(sent)
            assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 400")
            writer.close()
    assert caplog.records == []


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /livez HTTP/1.1\r\nHo", b"GET /large HTTP/1.1\r\nHost: test\r\n\r\n"],
    ids=["nothing", "half a header", "reads no response"],
)
async def test_slow_connection_is_closed(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that does not send its request, or does not read its response, is closed after the limit."""
    monkeypatch.setattr("timer_service.http.CONNECTION_SECONDS", 0.2)

    async def large(_: Request) -> Response:
        return Response(b"x" * 20_000_000)

    app = Starlette(routes=[Route("/large", large)])
    async with serve_http(app, HOST, 0) as (port, _):
        loop = asyncio.get_running_loop()
        with socket.create_connection((HOST, port)) as connection:
            files = open_files()
            connection.setblocking(False)  # noqa: FBT003
            await loop.sock_sendall(connection, sent)
            async with asyncio.timeout(10):
                while open_files() <= files:  # the server has not accepted the connection yet
                    await asyncio.sleep(0.01)
                while open_files() > files:
                    await asyncio.sleep(0.01)


def open_files() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


async def test_a_connection_carries_one_request() -> None:
    """The response closes the connection, so an idle client holds none."""
    async with serve_http(pages(), HOST, 0) as (port, _):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n")
        assert b"connection: close" in (await asyncio.wait_for(reader.read(), 5)).lower()
        writer.close()
        await writer.wait_closed()
