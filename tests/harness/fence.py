"""The fence of deploy/nats.conf: its configuration for tests, and connections of its users."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from tests.harness.nats_client import round_trip
from tests.harness.processes import NatsServer, body
from timer_service.adapters.nats.subjects import Subjects
from timer_service.cli.tenant_streams import stream_events

DEPLOY = Path(__file__).parents[2] / "deploy"
CONFIG = (DEPLOY / "nats.conf").read_text().replace('include "tenants.conf"', (DEPLOY / "tenants.conf").read_text())


def without_permissions(config: str) -> str:
    """Return a configuration without the permissions of tenants."""
    return re.sub(r"\n    permissions: {\n.*?\n    }", "", config, flags=re.DOTALL)


ACCOUNTS = without_permissions(CONFIG)
"""The fence without the permissions of tenants, which only spare the server: what the accounts alone prevent."""
PASSWORDS = {
    "TIMER_SERVICE_PASSWORD": "service-s3cret",
    "OPERATOR_PASSWORD": "operator-s3cret",
    "TENANT_A_PASSWORD": "tenant-a-s3cret",
    "TENANT_B_PASSWORD": "tenant-b-s3cret",
}
STREAMS = ("TIMER_CMD", "TIMER_EVT", "TIMER_DLQ")
MARKER = "marker"
PATIENCE_SECONDS = 20
SERVICE_LOGIN = {"TIMER_BROKER_USER": "timer-service", "TIMER_BROKER_PASSWORD": PASSWORDS["TIMER_SERVICE_PASSWORD"]}
LONG_AFTER = "2100-01-01T00:00:00Z"
LONG_AGO = "2020-01-01T00:00:00Z"


class Peer:
    """A connection of one user. `violations` are the permission errors that it received."""

    def __init__(self, connection: Client, violations: list[str]) -> None:
        self.connection = connection
        self.violations = violations

    async def settle(self) -> None:
        """Return when the broker has processed all that this peer has sent."""
        await round_trip(self.connection)

    async def subscribe(self, *subjects: str) -> list[Subscription]:
        """Subscribe. Return when the broker has processed the subscriptions."""
        made = [await self.connection.subscribe(subject) for subject in subjects]
        await self.settle()
        return made

    async def publish(self, subject: str, content: bytes = b"", reply: str = "", **headers: str) -> None:
        """Publish a message. Return when the broker has accepted or refused it."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await self.connection.publish(subject, content, reply, headers=named or None)
        await self.settle()

    async def received(self, *subscriptions: Subscription) -> list[tuple[str, bytes]]:
        """Return the messages that the subscriptions received so far."""
        await self.settle()
        return [
            (message.subject, message.data)
            for subscription in subscriptions
            for message in [await subscription.next_msg(1) for _ in range(subscription.pending_msgs)]
        ]

    async def request(self, subject: str, content: bytes = b"") -> Any:
        """Return the reply to a request, or None if there is no reply."""
        try:
            return json.loads((await self.connection.request(subject, content, timeout=2)).data)
        except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
            return None

    async def schedule(self, tenant: str, call: str, due_at: str = LONG_AGO, **fields: str) -> Any:
        """Schedule a timer and return the outcome that arrives in an inbox of this peer."""
        inbox = self.connection.new_inbox()
        (replies,) = await self.subscribe(inbox)
        await self.connection.jetstream().publish(
            f"timer.cmd.v1.{tenant}.schedule-timer",
            command(tenant, call, due_at, **fields),
            headers={"Timer-Reply-To": inbox},
        )
        outcome = json.loads((await replies.next_msg(PATIENCE_SECONDS)).data)
        await replies.unsubscribe()
        return outcome


class Operator(Peer):
    """The connection of the operator, who has all permissions."""

    async def count_messages(self) -> Mapping[str, Mapping[str, int]]:
        """Return the number of messages by stream and subject, after everything sent before has arrived."""
        js = self.connection.jetstream()
        for kind in ("cmd", "evt", "dlq"):
            await js.publish(f"timer.{kind}.v1.{MARKER}.schedule-timer", command(MARKER, "any", "9000-01-01T00:00:00Z"))
        return {stream: await self._counts(stream) for stream in STREAMS}

    async def _counts(self, stream: str) -> Mapping[str, int]:
        info = await self.connection.jetstream().stream_info(stream, subjects_filter=">")
        return {subject: count for subject, count in (info.state.subjects or {}).items() if MARKER not in subject}

    async def find_stream(self, tenant: str) -> str:
        """Return the name of a tenant's own stream of commands."""
        return await self.connection.jetstream().find_stream_name_by_subject(f"timer.cmd.v1.{tenant}.*")

    async def create_consumer(self, tenant: str) -> None:
        """Let a tenant read its events from a stream of its own, as `timer-service tenants events` does."""
        await stream_events(self.connection, Subjects("timer"), [tenant])

    async def unacknowledged(self, tenant: str) -> int:
        """Return how many events were delivered to a tenant and not acknowledged."""
        info = await self.connection.jetstream().consumer_info(f"TIMER_EVT_{tenant}", tenant)
        return info.num_ack_pending or 0


def command(tenant: str, call: str, due_at: str = LONG_AGO, **fields: str) -> bytes:
    return body("ScheduleTimer", tenant, {"tenantId": tenant, "serviceCallId": call, "dueAt": due_at, **fields})


def password_of(user: str) -> str:
    """Return the password of a user in tests."""
    return PASSWORDS[f"{user.upper().replace('-', '_')}_PASSWORD"]


async def connect(broker: NatsServer, user: str, kind: type[Peer] = Peer) -> Any:
    violations: list[str] = []

    async def on_error(error: Exception) -> None:
        violations.append(str(error))

    connection = await nats.connect(
        broker.url,
        user=user,
        password=password_of(user),
        inbox_prefix=f"_INBOX.{user}" if user.startswith("tenant") else "_INBOX",
        allow_reconnect=False,
        error_cb=on_error,
    )
    return kind(connection, violations)


async def separate_tenants(broker: NatsServer, password: Path, *tenants: str) -> str:
    """Give each tenant a stream of its own as the operator, as described in docs/security.md. Return the output."""
    settings = {
        "TIMER_BROKER_URL": broker.url,
        "TIMER_BROKER_USER": "operator",
        "TIMER_BROKER_PASSWORD_FILE": str(password),
    }
    command = [sys.executable, "-m", "timer_service", "tenants", "separate", *tenants]
    ran = await asyncio.to_thread(
        subprocess.run, command, env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def deny_to_service(*subjects: str) -> str:
    """Return the configuration with subjects that the service may neither publish nor subscribe to."""
    login = "password: $TIMER_SERVICE_PASSWORD"
    denied = json.dumps({"deny": list(subjects)})
    return CONFIG.replace(login, f"{login}, permissions: {{ publish: {denied}, subscribe: {denied} }}")
