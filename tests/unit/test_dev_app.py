"""The notes and the settings of `open_dev_app`. The broker and the app themselves are replaced."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from timer_service.app import startup


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


@pytest.mark.parametrize(("value", "enabled"), [("", True), ("true", True), ("false", False)])
async def test_page_is_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, *, enabled: bool) -> None:
    """`timer-service dev` serves the operations page unless the environment forbids it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIMER_UI_ENABLED", value)
    monkeypatch.setattr(startup, "embedded_nats", nothing)
    monkeypatch.setattr(startup, "open_app", nothing)
    async with startup.open_dev_app(tmp_path / "dev") as (_, config, _):
        assert config.ui_enabled is enabled
