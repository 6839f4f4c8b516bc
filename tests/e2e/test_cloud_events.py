"""Events with the attributes of CloudEvents, as a consumer gets them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.e2e.conftest import User
from tests.harness.processes import NatsServer, Service
from timer_service.client import NewTimer, TimerClient

PAST = datetime(2020, 1, 1, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def test_attributes(tmp_path: Path, broker: NatsServer, user: User) -> None:
    """With the setting, each event has the attributes, in batches and alone, and dead letters have none."""
    async with (
        Service(tmp_path / "service", broker.url, TIMER_CLOUDEVENTS="true"),
        TimerClient.connect(broker.url) as client,
    ):
        await client.timers.schedule_many([NewTimer("acme", f"call-{n}", PAST, topic="unpaid") for n in range(30)])
        await client.schedules.put("acme", "daily", every=timedelta(days=1), topic="report")
        await client.schedules.trigger("acme", "daily")
        await user.js.publish("timer.cmd.v1.acme.schedule-timer", b"no JSON")
        await user.until_stored("TIMER_EVT", 32)
        await user.until_stored("TIMER_DLQ", 1)
    for message in await user.read("TIMER_EVT"):
        event = json.loads(message.data)
        *_, last = message.subject.split(".")
        assert last == event.get("topic", "command-rejected")
        attributes = {name[3:]: value for name, value in message.headers.items() if name.startswith("ce-")}
        at = datetime.fromisoformat(attributes.pop("time"))
        assert (at - EPOCH) // timedelta(milliseconds=1) == event["timestampMs"]
        assert attributes == {
            "specversion": "1.0",
            "id": message.headers["Nats-Msg-Id"],
            "type": event["type"],
            "source": "timer-service/acme",
            "datacontenttype": "application/json",
        }
    (letter,) = await user.read("TIMER_DLQ")
    assert not any(name.startswith("ce-") for name in letter.headers)
