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


def healthcheck(port: int, host: str = HOST) -> Result:
    settings = {"TIMER_HTTP_HOST": host, "TIMER_HTTP_PORT": str(port)}
    return CliRunner().invoke(create_app(["healthcheck"]), ["healthcheck"], env=settings)


async def healthcheck_of(health: Mapping[str, Health], host: str = HOST) -> Result:
    pages = http_app(CollectorRegistry(), health=lambda: health, stalled=list)
    async with serve_http(pages, host, 0) as (port, _):
        return await asyncio.to_thread(healthcheck, port, host)


async def test_ready_service() -> None:
    """If the service is ready, the exit code is 0."""
    done = await healthcheck_of({"commands": HEALTHY, "service": HEALTHY})
    assert (done.exit_code, done.stdout, done.stderr) == (0, "ready\n", "")


async def test_service_on_every_interface() -> None:
    """If the service listens on every interface, the loopback address is asked."""
    done = await healthcheck_of({"service": HEALTHY}, "0.0.0.0")
    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("health", "line"),
    [
        (
            {"commands": AWAY, "events": AWAY, "queries": HEALTHY, "service": HEALTHY},
            "not ready: commands, events: not connected to the broker",
        ),
        (
            {"commands": AWAY, "events": Health(reason="denied: publish"), "service": Health.down("draining")},
            "not ready: commands: not connected to the broker; events: denied: publish; service: draining",
        ),
        ({"events": Health.down("two\nlines"), "service": HEALTHY}, r"not ready: events: two\nlines"),
    ],
    ids=["same reason", "several reasons", "line break"],
)
async def test_service_that_is_not_ready(health: Mapping[str, Health], line: str) -> None:
    """If the service is not ready, the exit code is 1, and one line has each reason once."""
    done = await healthcheck_of(health)
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", f"{line}\n")


@pytest.mark.parametrize("host", [HOST, "0.0.0.0"])
def test_no_service(host: str) -> None:
    """If no service answers, the exit code is 1, and the line names the address that was asked."""
    with socket.create_server((HOST, 0)) as closed:
        port = closed.getsockname()[1]
    done = healthcheck(port, host)
    assert (done.exit_code, done.stderr) == (1, f"not ready: no service answers at http://{HOST}:{port}/readyz\n")
