"""How an instance is opened and closed: what the broker gets from the settings, what /metrics shows, and the order."""

import logging
import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.harness.instance import InstanceBroker
from timer_service.adapters.nats import NatsBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.app import schema
from timer_service.app.startup import open_app
from timer_service.config import Config
from timer_service.core.limits.audit import OPERATOR_ACTION
from timer_service.core.ports.health import Health
from timer_service.core.values.address import MAX_MESSAGE_BYTES
from timer_service.core.values.errors import StartError
from timer_service.metrics import Metrics


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> InstanceBroker:
    """Return the broker that an app gets, which records how it is opened and closed."""
    broker = InstanceBroker()

    async def connect(*names: str, **options: Any) -> InstanceBroker:
        broker.connected = (*names, options)
        return broker

    monkeypatch.setattr(NatsBroker, "connect", connect)
    return broker


def config(folder: Path, **settings: Any) -> Config:
    return Config.model_validate({"db_path": folder / "timers.db", **settings})


async def test_connection_to_the_broker(tmp_path: Path, broker: InstanceBroker) -> None:
    """The connection to the broker has the settings, each in its place and unit."""
    settings = {
        "broker_url": "tls://one:4222,tls://two:4222",
        "subject_prefix": "acme.timer",
        "reply_prefix": "_REPLY.",
        "manage_streams": False,
        "commands_overlap": 2500,
        "broker_user": "me",
        "broker_password": "s3cret",
    }
    async with open_app(config(tmp_path, **settings)):
        pass
    assert broker.connected[-1].pop("login")() == {"user": "me", "password": "s3cret"}
    assert broker.connected == (
        "tls://one:4222,tls://two:4222",
        "acme.timer",
        {
            "reply_prefix": "_REPLY.",
            "manage_streams": False,
            "overlap": timedelta(seconds=2.5),
        },
    )


async def test_end(tmp_path: Path, broker: InstanceBroker) -> None:
    """At the end, also after an error, the broker is closed, and the database is free."""
    settings = config(tmp_path)
    with pytest.raises(RuntimeError, match="a surprise"):
        async with open_app(settings):
            raise RuntimeError("a surprise")
    assert broker.steps == ["broker closed"]
    async with open_app(settings):
        pass


async def test_broker_with_small_messages(tmp_path: Path, broker: InstanceBroker) -> None:
    """A broker that cannot store the largest event is refused at the start, and closed."""
    for most, refused in ((MAX_MESSAGE_BYTES, False), (MAX_MESSAGE_BYTES - 1, True)):
        broker.max_message_bytes = most
        broker.steps.clear()
        try:
            async with open_app(config(tmp_path)):
                found = False
        except StartError as error:
            found = f"accepts messages of at most {most} bytes" in str(error)
        assert (found, broker.steps) == (refused, ["broker closed"])


@pytest.mark.parametrize("auto", [True, False])
async def test_missing_migrations(
    tmp_path: Path, broker: InstanceBroker, caplog: pytest.LogCaptureFixture, *, auto: bool
) -> None:
    """A start brings the schema to head, with one line in the log, or names what is missing if that is off."""
    caplog.set_level(logging.INFO)
    settings = config(tmp_path, auto_migrate=auto)
    if auto:
        async with open_app(settings):
            pass
    else:
        with pytest.raises(StartError, match=r"the schema lacks 0001.*`timer-service migrate up`"):
            async with open_app(settings):
                pass
        assert await schema.unapplied_migrations(settings) == await schema.apply_migrations(settings) != []
    assert await schema.unapplied_migrations(settings) == []
    lines = [vars(line) for line in caplog.records if line.message == OPERATOR_ACTION]
    assert [each["migrations"] for each in lines] == [[each.name for each in schema.migrations()]]
    assert {(each["type"], each["uid"]) for each in lines} == {("migration", os.geteuid())}
    async with open_app(settings):
        assert broker.connected


async def test_metrics(tmp_path: Path, broker: InstanceBroker) -> None:
    """Failures of each table that is retried are counted from 0. The database is up if it can be read and written."""
    with patch.object(Metrics, "create_failure_series") as create, patch.object(Metrics, "watch") as watch:
        async with open_app(config(tmp_path)):
            is_usable = watch.call_args.kwargs["database"]
            usable = [is_usable()]
            for health in ("read_health", "health"):
                with patch.object(SqliteDatabase, health, Health.down("it is away")):
                    usable.append(is_usable())
    assert (usable, bool(broker.steps)) == ([True, False, False], True)
    leased, due = (set(create.call_args.kwargs[each]) for each in ("leased", "due"))
    assert leased == {"timer_schedules", "outbox", "dead_letters", "work_signal_firings"}
    assert leased.isdisjoint(due)
