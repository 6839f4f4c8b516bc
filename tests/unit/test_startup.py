"""How an instance is opened and closed: what the broker gets from the settings, what /metrics shows, and the order."""

import logging
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.harness.instance import InstanceBroker
from timer_service.adapters.nats import NatsBroker
from timer_service.adapters.nats.connection import Login
from timer_service.app import schema
from timer_service.app.slices import QUERIES, SLICES
from timer_service.app.startup import open_app
from timer_service.config import Config
from timer_service.core.limits.audit import OPERATOR_ACTION
from timer_service.core.ports.broker import BrokerFeatures
from timer_service.core.ports.health import Health
from timer_service.core.values.errors import StartError
from timer_service.core.values.message import MAX_MESSAGE_BYTES

REQUESTS = {"poll-tasks", "report-tasks", "renew-tasks", "get-effects"}
LEASED = {"timer_schedules", "work_signal_firings", "outbox", "dead_letters"}


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
    files = {name: tmp_path / name for name in ("ca", "cert", "key")}
    for file in files.values():
        file.write_text("x")
    settings = {
        "broker_url": "tls://one:4222,tls://two:4222",
        "subject_prefix": "acme.timer",
        "reply_prefix": "_REPLY.",
        "manage_streams": False,
        "commands_overlap": 2500,
        "nats_user": "me",
        "nats_password": "s3cret",
        **{f"nats_tls_{name}": file for name, file in files.items()},
    }
    async with open_app(config(tmp_path, **settings)):
        pass
    assert broker.connected == (
        "tls://one:4222,tls://two:4222",
        "acme.timer",
        {
            "login": Login(
                user="me", password="s3cret", tls_ca=files["ca"], tls_cert=files["cert"], tls_key=files["key"]
            ),
            "reply_prefix": "_REPLY.",
            "manage_streams": False,
            "overlap": timedelta(seconds=2.5),
        },
    )


async def test_series_of_failures(tmp_path: Path, broker: InstanceBroker) -> None:
    """Before anything happens, the metrics have the series of the failures of every command, query, request, table."""
    async with open_app(config(tmp_path)) as app:
        samples = [each for metric in app._registry.collect() for each in metric.samples if each.value == 0]

    def labels(name: str, label: str, **others: str) -> set[str]:
        found = [each.labels for each in samples if each.name == name and others.items() <= each.labels.items()]
        return {each[label] for each in found}

    types = {payload.type for each in SLICES for payload in each.commands}
    assert labels("timer_commands_received_total", "type", outcome="rejected") == types | {"unknown"}
    assert labels("timer_queries_total", "query", outcome="INTERNAL") == {query.name for query in QUERIES}
    assert labels("timer_requests_total", "request", outcome="INTERNAL") == REQUESTS
    assert labels("timer_buried_total", "table") == LEASED
    assert labels("timer_schedules_processed_total", "table", outcome="buried") == LEASED
    assert labels("timer_schedules_processed_total", "table", outcome="failed") == {"schedules"}


async def test_metrics_of_the_health(tmp_path: Path, broker: InstanceBroker) -> None:
    """Each scrape shows whether the broker can be used, and which flows are up."""
    found: list[tuple[float | None, set[str]]] = []
    async with open_app(config(tmp_path)) as app:
        app._caught_up.set()
        for health in (Health(), Health(usable=True, reason="a permission is denied"), Health.down("away")):
            broker.health = health
            up = {
                flow
                for flow in ("commands", "events", "queries", "requests")
                if app._registry.get_sample_value("timer_flow_up", {"flow": flow})
            }
            found.append((app._registry.get_sample_value("timer_broker_connected"), up))
    assert found == [
        (1, {"events", "queries"}),
        (1, set()),
        (0, set()),
    ]  # the log is not open


async def test_end(tmp_path: Path, broker: InstanceBroker) -> None:
    """At the end, also after an error, the broker is closed first, and then the database, which it may still need."""
    states: list[bool] = []
    settings = config(tmp_path)

    async def close() -> None:
        async with app._database.transaction() as tx:
            states.append(bool(await tx.fetch("SELECT 1 AS one")))

    broker.close = close  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="a surprise"):
        async with open_app(settings) as app:
            raise RuntimeError("a surprise")
    assert states == [True]
    async with open_app(settings):  # its lock is free
        pass


async def test_broker_with_small_messages(tmp_path: Path, broker: InstanceBroker) -> None:
    """A broker that cannot store the largest event is refused at the start, and closed."""
    for most, refused in ((MAX_MESSAGE_BYTES, False), (MAX_MESSAGE_BYTES - 1, True)):
        broker.features = BrokerFeatures(deduplicates=True, max_message_bytes=most)
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
    """A start brings the schema to head, or names what is missing if that is switched off. It can then be applied."""
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
    assert [each["migration"] for each in lines] == [each.name for each in schema.migrations("sqlite")]
    assert {(each["type"], each["uid"]) for each in lines} == {("migration", os.geteuid())}
    async with open_app(settings):
        assert broker.connected
