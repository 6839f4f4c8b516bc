"""Tests of contracts/asyncapi.yaml with a running service."""

import runpy
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.e2e.conftest import User
from tests.harness.processes import Service

CONTRACTS = Path(__file__).parents[2] / "contracts"
UNITS = {"s": "seconds", "m": "minutes", "d": "days"}


def seconds(duration: str) -> float:
    return timedelta(**{UNITS[duration[-1]]: int(duration[:-1])}).total_seconds()


async def test_streams_and_consumer_match_the_document(user: User, service: Service) -> None:
    """The service creates the streams and the consumer that the document describes."""
    await user.schedule({"call-1": 0})
    await user.until_stored("TIMER_EVT", 1)  # the consumer exists now
    facts: Any = runpy.run_path(str(CONTRACTS / "generate.py"))["asyncapi"]()["x-jetstream"]
    for stream in facts["streams"]:
        config = (await user.js.stream_info(stream.pop("stream"))).config
        assert config.max_age == seconds(stream.pop("max_age"))
        assert config.duplicate_window == seconds(stream.pop("duplicate_window"))
        assert bool(config.allow_atomic) == stream.pop("allow_atomic")
        assert {name: getattr(config, name) for name in stream} == stream
    consumer = facts["consumer"]
    found = (await user.js.consumer_info(consumer.pop("stream"), consumer["durable_name"])).config
    assert {name: getattr(found, name) for name in consumer} == consumer
