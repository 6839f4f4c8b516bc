"""The notes and the settings of `open_dev_app`. The broker and the app themselves are replaced."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.harness.processes import unused_port
from timer_service.app import startup
from timer_service.config import Config


@asynccontextmanager
async def nothing(*_: object) -> AsyncIterator[str]:
    yield "nats://localhost:4222"


async def test_unknown_setting_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`timer-service dev` shows the same warning for a misspelt setting as `serve`, without its value."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIMER_DBPATH", "s3cret")
    monkeypatch.setattr(startup, "embedded_nats", nothing)
    monkeypatch.setattr(startup, "open_app", nothing)
    async with startup.open_dev_app(tmp_path) as (_, _, notes):
        assert "unknown setting TIMER_DBPATH; did you mean TIMER_DB_PATH?" in notes
        assert "s3cret" not in " ".join(notes)


async def test_database_of_the_environment_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`timer-service dev` never opens the database that the environment names: it may hold real timers."""
    (tmp_path / "url").write_text("postgresql://localhost/real")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(startup, "embedded_nats", nothing)
    monkeypatch.setattr(startup, "open_app", nothing)
    for setting, value in (
        ("TIMER_DATABASE_URL", "postgresql://localhost/real"),
        ("TIMER_DATABASE_URL_FILE", str(tmp_path / "url")),
        ("TIMER_DB_PATH", "/var/lib/real.db"),
    ):
        with monkeypatch.context() as environment:
            environment.setenv(setting, value)
            async with startup.open_dev_app(tmp_path / "dev") as (_, config, _):
                assert (config.postgres_url, config.db_path) == (None, tmp_path / "dev" / "timers.db")


async def test_ports_of_the_embedded_broker_and_the_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`timer-service dev` keeps its files in its folder. A port that is in use is replaced, and a note says so."""
    started: list[tuple[Path, int]] = []
    served: list[Config] = []

    @asynccontextmanager
    async def embedded(folder: Path, port: int) -> AsyncIterator[str]:
        started.append((folder, port))
        yield f"nats://127.0.0.1:{port}"

    @asynccontextmanager
    async def opened(config: Config) -> AsyncIterator[str]:
        served.append(config)
        yield "the app"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(startup, "embedded_nats", embedded)
    monkeypatch.setattr(startup, "open_app", opened)
    with socket.create_server(("127.0.0.1", 0)) as nats, socket.create_server(("127.0.0.1", 0)) as pages:
        ports = {"NATS": nats.getsockname()[1], "HTTP": pages.getsockname()[1]}
        monkeypatch.setattr(startup, "_NATS_PORT", ports["NATS"])
        monkeypatch.setenv("TIMER_HTTP_PORT", str(ports["HTTP"]))
        async with startup.open_dev_app(tmp_path / "dev") as (app, config, notes):
            pass
    ((folder, port),) = started
    assert (str(app), folder, served) == ("the app", tmp_path / "dev" / "nats", [config])
    assert config.broker_url == f"nats://127.0.0.1:{port}"
    assert {port, config.http_port}.isdisjoint(ports.values())
    assert notes == [
        f"Port {ports['NATS']} is in use; NATS uses {port} instead.",
        f"Port {ports['HTTP']} is in use; HTTP uses {config.http_port} instead.",
    ]


async def test_ports_that_are_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that is free is used, and needs no note."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(startup, "embedded_nats", nothing)
    monkeypatch.setattr(startup, "open_app", nothing)
    port = unused_port()
    monkeypatch.setattr(startup, "_NATS_PORT", unused_port())
    monkeypatch.setenv("TIMER_HTTP_PORT", str(port))
    async with startup.open_dev_app(tmp_path / "dev") as (_, config, notes):
        assert (config.http_port, notes) == (port, [])


@pytest.mark.parametrize(("value", "enabled"), [("", True), ("true", True), ("false", False)])
async def test_page_is_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, *, enabled: bool) -> None:
    """`timer-service dev` serves the operations page unless the environment forbids it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIMER_UI_ENABLED", value)
    monkeypatch.setattr(startup, "embedded_nats", nothing)
    monkeypatch.setattr(startup, "open_app", nothing)
    async with startup.open_dev_app(tmp_path / "dev") as (_, config, _):
        assert config.ui_enabled is enabled
