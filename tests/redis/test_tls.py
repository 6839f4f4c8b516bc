"""TLS between a Redis server and the service, a client and `doctor`, with a certificate of an own authority."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness.processes import Service, unused_port
from tests.harness.redis import RedisServer
from tests.harness.rotations import make_certificate
from timer_service.cli.doctor.finding import Finding, Status
from timer_service.cli.doctor.redis import check_redis
from timer_service.client import NoAnswerError, TimerClient
from timer_service.config import Config

pytestmark = pytest.mark.slow


class Tls(NamedTuple):
    server: RedisServer
    """Its port is a plain one."""
    url: str
    settings: Mapping[str, str]
    options: Mapping[str, str]
    """Those of a client."""


@pytest.fixture
async def tls(tmp_path: Path) -> AsyncIterator[Tls]:
    """Yield a server that asks for certificates, and what it accepts."""
    if shutil.which("redis-server") is None:  # the server of the wheel has no TLS
        (pytest.fail if os.environ.get("CI") else pytest.skip)("not run: redis-server is not installed")
    make_certificate(tmp_path / "tls")
    cert, key, port = str(tmp_path / "tls" / "cert.pem"), str(tmp_path / "tls" / "key.pem"), unused_port()
    files = ("--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert)
    async with RedisServer(tmp_path / "redis", "--tls-port", str(port), *files) as server:
        settings = {"TIMER_BROKER_TLS_CA": cert, "TIMER_BROKER_TLS_CERT": cert, "TIMER_BROKER_TLS_KEY": key}
        options = {"ssl_ca_certs": cert, "ssl_certfile": cert, "ssl_keyfile": key}
        yield Tls(server, f"rediss://127.0.0.1:{port}", settings, options)


async def test_service_and_client(tmp_path: Path, tls: Tls) -> None:
    """With the files of the certificate, a client schedules a timer and sees it fire."""
    async with (
        Service(tmp_path / "service", tls.url, **tls.settings),
        TimerClient.connect(tls.url, **tls.options) as client,
    ):
        await client.timers.schedule("acme", "a", datetime.now(UTC))
        events = client.consume("acme", "mine", from_start=True)
        async with asyncio.timeout(10):
            assert (await anext(events)).event.about == "timer a"
        await events.aclose()
    config = {name.removeprefix("TIMER_").lower(): value for name, value in tls.settings.items()}
    found = await check_redis(Config.model_validate({"broker_url": tls.url, **config}))
    assert Status.FAIL not in [each.status for each in found if isinstance(each, Finding)]


async def start_error(tmp_path: Path, url: str) -> str:
    """Return why the service does not start."""
    service = Service(tmp_path / "service", url)
    service.launch()
    assert await service.wait() == 1
    return service.log.read_text().splitlines()[-1]


async def client_error(url: str) -> str:
    """Return why a client cannot connect."""
    with pytest.raises(NoAnswerError) as raised:
        async with TimerClient.connect(url):
            pass
    return str(raised.value)


async def doctor_error(url: str) -> str:
    """Return the only finding of `doctor`."""
    (found,) = await check_redis(Config.model_validate({"broker_url": url}))
    assert isinstance(found, Finding)
    assert found.status is Status.FAIL
    return found.message


async def errors(tmp_path: Path, url: str) -> list[str]:
    """Return the errors of the service, of a client and of `doctor`."""
    return [await start_error(tmp_path, url), await client_error(url), await doctor_error(url)]


async def test_unknown_authority(tmp_path: Path, tls: Tls) -> None:
    """The error of the service, of a client and of `doctor` says that the certificate is not trusted."""
    for error in await errors(tmp_path, tls.url):
        assert "TLS with the Redis server has failed" in error
        assert "self-signed certificate" in error


async def test_port_without_tls(tmp_path: Path, tls: Tls) -> None:
    """The error of the service, of a client and of `doctor` says that the port must be one of TLS."""
    for error in await errors(tmp_path, tls.server.url.replace("redis:", "rediss:")):
        assert "with rediss://, the port must be one of TLS" in error
