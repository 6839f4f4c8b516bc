"""`timer-service healthcheck`."""

import asyncio
import socket
from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner, Result

from timer_service.cli import create_app
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.http import http_app, serve_http

HOST = "127.0.0.1"
AWAY = Health.down("not connected to the broker")
DRAINING = Health.down("draining\nnow")


def healthcheck(port: int, host: str = HOST) -> Result:
    settings = {"TIMER_HTTP_HOST": host, "TIMER_HTTP_PORT": str(port)}
    return CliRunner().invoke(create_app(["healthcheck"]), ["healthcheck"], env=settings)


@pytest.mark.parametrize(
    ("health", "printed"),
    [
        ({"commands": HEALTHY, "service": HEALTHY}, (0, "ready\n", "")),
        (
            {"commands": AWAY, "events": AWAY, "queries": HEALTHY, "service": DRAINING},
            (1, "", "not ready: commands, events: not connected to the broker; service: draining\\nnow\n"),
        ),
    ],
)
@pytest.mark.parametrize("host", [HOST, "0.0.0.0"])
async def test_running_service(health: Mapping[str, Health], printed: tuple[int, str, str], host: str) -> None:
    """If the service is not ready, the exit code is 1, and one line has each reason once with its flows."""
    pages = http_app(CollectorRegistry(), health=lambda: health, stalled=list)
    async with serve_http(pages, host, 0) as (port, _):
        done = await asyncio.to_thread(healthcheck, port, host)
    assert (done.exit_code, done.stdout, done.stderr) == printed


def test_no_service() -> None:
    """If no service answers, the exit code is 1, and the line names the address that was asked."""
    with socket.create_server((HOST, 0)) as closed:
        port = closed.getsockname()[1]
    done = healthcheck(port)
    assert (done.exit_code, done.stderr) == (1, f"not ready: no service answers at http://{HOST}:{port}/readyz\n")
