"""The notes and the settings of `open_dev_app`. The broker and the app themselves are replaced."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from timer_service.adapters.embedded import EmbeddedServer, Program, free_port
from timer_service.app import startup
from timer_service.config import Config
from timer_service.core.values.errors import StartError
from timer_service.dev_server import BrokerKind, announce_dev_server

SCHEMES = {"NATS": "nats", "Redis": "redis", "RabbitMQ": "amqp"}


@asynccontextmanager
async def no_server(program: Program, _: Path, port: int, *, or_other_port: bool) -> AsyncIterator[EmbeddedServer]:
    """Yield a broker that never ends, at the port that was asked for or at another one."""
    port = free_port(port) if or_other_port else port
    yield EmbeddedServer(f"{SCHEMES[program.label]}://127.0.0.1:{port}", asyncio.get_running_loop().create_future())


@asynccontextmanager
async def no_app(_: Config) -> AsyncIterator[None]:
    yield


@pytest.fixture(autouse=True)
def no_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(startup, "embedded_server", no_server)
    monkeypatch.setattr(startup, "open_app", no_app)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("TIMER_DATABASE_URL", "postgresql://localhost/real"),
        ("TIMER_DATABASE_URL_FILE", "url"),
        ("TIMER_DB_PATH", "/var/lib/real.db"),
    ],
)
async def test_database_of_the_environment_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, value: str
) -> None:
    """`timer-service dev` never opens the database that the environment names: it may hold real timers."""
    (tmp_path / "url").write_text("postgresql://localhost/real")
    monkeypatch.setenv(setting, value)
    async with startup.open_dev_app(tmp_path / "dev") as (_, config, _):
        assert (config.postgres_url, config.db_path) == (None, tmp_path / "dev" / "timers.db")


async def test_ports_and_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that is in use is replaced. A note says so, and another one names a misspelt setting without its value."""
    monkeypatch.setenv("TIMER_DBPATH", "s3cret")
    monkeypatch.setenv("TIMER_NATS_PORT", "s3cret")
    with socket.create_server(("127.0.0.1", 0)) as pages:
        used = pages.getsockname()[1]
        monkeypatch.setenv("TIMER_HTTP_PORT", str(used))
        async with startup.open_dev_app(tmp_path / "dev") as (_, config, notes):
            assert config.http_port != used
    assert f"Port {used} is in use; HTTP uses {config.http_port} instead." in notes
    assert "unknown setting TIMER_DBPATH; did you mean TIMER_DB_PATH?" in notes
    assert "s3cret" not in " ".join(notes)
    async with startup.open_dev_app(tmp_path / "dev") as (_, config, notes):
        assert config.http_port == used


async def test_ports_of_the_last_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dev` uses the ports of its last start. A setting or an option is used instead. A taken port is replaced."""
    monkeypatch.delenv("TIMER_HTTP_PORT", raising=False)
    (tmp_path / "nats").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as other:
        nats, http = (each.getsockname()[1] for each in (taken, other))
        url, database = f"nats://127.0.0.1:{nats}", tmp_path / "timers.db"
        announce_dev_server(tmp_path, broker_url=url, db_path=database, http_host="127.0.0.1", http_port=http)
        async with startup.open_dev_app(tmp_path) as (_, config, notes):
            assert config.broker_url != url
            assert config.http_port != http
            assert [note.split(" is in use")[0] for note in notes[:2]] == [f"Port {nats}", f"Port {http}"]
        with pytest.raises(StartError, match=f"port {http} is in use: name another one with --http-port"):
            async with startup.open_dev_app(tmp_path, http_port=http):
                pass
    async with startup.open_dev_app(tmp_path) as (_, config, notes):
        assert (config.broker_url, config.http_port, [each for each in notes if "Port" in each]) == (url, http, [])
    monkeypatch.setenv("TIMER_HTTP_PORT", str(nats))
    async with startup.open_dev_app(tmp_path, broker_port=http) as (_, config, _):
        assert (config.broker_url, config.http_port) == (f"nats://127.0.0.1:{http}", nats)


async def test_broker_of_the_last_start(tmp_path: Path) -> None:
    """`dev` uses the broker of its last start and its port. With another broker, it uses the usual port of that one."""
    (tmp_path / "redis").mkdir()
    url, database = f"redis://127.0.0.1:{free_port(0)}", tmp_path / "timers.db"
    announce_dev_server(tmp_path, broker_url=url, db_path=database, http_host="127.0.0.1", http_port=free_port(0))
    async with startup.open_dev_app(tmp_path) as (_, config, _):
        assert config.broker_url == url
    async with startup.open_dev_app(tmp_path, broker=BrokerKind.RABBITMQ) as (_, config, notes):
        assert config.broker_url.startswith("amqp://127.0.0.1:")
        assert config.broker_url.endswith(":5672") or "Port 5672 is in use" in notes[0]


@pytest.mark.parametrize(("value", "enabled"), [("", True), ("false", False)])
async def test_page_is_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, *, enabled: bool) -> None:
    """`timer-service dev` serves the operations page unless the environment forbids it."""
    monkeypatch.setenv("TIMER_UI_ENABLED", value)
    async with startup.open_dev_app(tmp_path) as (_, config, _):
        assert config.ui_enabled is enabled
