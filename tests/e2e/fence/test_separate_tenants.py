"""Tenants with streams of their own for their commands, behind the fence of deploy/nats.conf."""

from pathlib import Path

import pytest
from nats.js.errors import NoStreamResponseError
from pydantic import SecretStr

from tests.harness.fence import LONG_AFTER, PASSWORDS, Operator, Peer, command, separate_tenants
from tests.harness.processes import NatsServer, Service
from timer_service.cli.tenant_streams import as_operator
from timer_service.cli.tenant_streams import separate_tenants as set_up
from timer_service.config import Config
from timer_service.core.values.errors import StartError


@pytest.fixture
def password(tmp_path: Path) -> Path:
    """Return the file with the password of the operator."""
    file = tmp_path / "operator"
    file.write_text(PASSWORDS["OPERATOR_PASSWORD"])
    return file


@pytest.fixture
async def separate(broker: NatsServer, operator: Operator, password: Path) -> None:
    """Separate the tenants while the service runs."""
    await separate_tenants(broker, password, "tenant-a", "tenant-b")


async def test_separating_needs_the_operator(broker: NatsServer) -> None:
    """Another login gets the reason, and learns which login is needed."""
    config = Config(
        broker_url=broker.url, broker_user="tenant-a", broker_password=SecretStr(PASSWORDS["TENANT_A_PASSWORD"])
    )
    with pytest.raises(StartError, match="cannot be set up: JetStream does not answer; this needs the login of the op"):
        await as_operator(config, set_up, ["tenant-a"])


@pytest.mark.slow
async def test_tenants_are_separated_while_the_service_runs(
    broker: NatsServer, a: Peer, b: Peer, service: Service, password: Path
) -> None:
    """Commands before and after are handled. A tenant that was not named can publish nothing until it is named."""
    assert (await a.schedule("tenant-a", "call-1", LONG_AFTER))["outcome"] == "scheduled"
    assert await separate_tenants(broker, password, "tenant-a") == "tenant-a: has a new stream\n"
    assert (await a.schedule("tenant-a", "call-2", LONG_AFTER))["outcome"] == "scheduled"
    with pytest.raises(NoStreamResponseError):
        await b.schedule("tenant-b", "call-1", LONG_AFTER)
    added = await separate_tenants(broker, password, "tenant-a", "tenant-b")
    assert added == "tenant-a: had its stream already\ntenant-b: has a new stream\n"
    assert (await b.schedule("tenant-b", "call-1", LONG_AFTER))["outcome"] == "scheduled"
    assert (await a.request("timer.qry.v1.tenant-a.count-timers"))["counts"]["Scheduled"] == 2
    assert (await service.page("/readyz"))[0] == 200


async def test_tenants_do_not_reach_the_way_between_the_streams(
    separate: None, operator: Operator, a: Peer, b: Peer
) -> None:
    """A tenant can neither send to the subject of the intake nor read commands of others there."""
    js = operator.connection.jetstream()
    stream = await operator.find_stream("tenant-b")
    (consumer,) = await js.consumers_info(stream)
    subject = consumer.config.deliver_subject or ""
    (read,) = await a.subscribe(subject)
    stored = (await js.stream_info("TIMER_CMD")).state.messages
    reply = f"$JS.ACK.{stream}.{consumer.name}.1.9.9.9.0"
    await a.publish(subject, command("tenant-b", "stolen"), reply)
    assert (await b.schedule("tenant-b", "call-1", LONG_AFTER))["outcome"] == "scheduled"
    assert (await js.stream_info("TIMER_CMD")).state.messages == stored + 1
    assert await a.received(read) == []
