"""The broker, as the service's own user sees it."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client

from timer_service.adapters.nats.durable import DURABLE
from timer_service.adapters.nats.subjects import Subjects
from timer_service.app.login import nats_login
from timer_service.cli.doctor.checks.clocks import check_broker_clock
from timer_service.cli.doctor.checks.permissions import check_permissions, needed_publishes
from timer_service.cli.doctor.checks.streams import check_missing_stream, check_stream
from timer_service.cli.doctor.checks.versions import check_server
from timer_service.cli.doctor.finding import Finding, Status
from timer_service.config import Config
from timer_service.core.errors import StartError
from timer_service.core.message import Kind

_TIMEOUT_SECONDS = 2
_INBOX_PREFIX = "_INBOX_TIMER_SERVICE"  # the service's own: its user may be fenced to it
_KEPT = (Kind.COMMAND, Kind.EVENT, Kind.DEAD_LETTER)
_NOT_FOUND = 404
_SYNC = Finding(
    "durability",
    Status.NOTE,
    "whether the broker syncs before it acknowledges can't be seen from here",
    "Run nats-server with jetstream { sync_interval: always }, or a power cut can lose what it has acknowledged.",
)


async def look_at_broker(config: Config) -> AsyncIterator[Finding]:
    """Connect, and look at the server, its permissions, streams and clock."""
    errors: list[str] = []

    async def note(error: Exception) -> None:
        errors.append(str(error) or type(error).__name__)

    try:
        client = await _connect(config, note)
    except (nats.errors.Error, OSError, StartError) as error:
        reason = errors[-1] if errors else str(error)
        remedy = "Check TIMER_BROKER_URL and TIMER_NATS_*, and that the server runs."
        yield Finding("broker", Status.FAIL, f"can't connect: {reason}", remedy)
        return
    try:
        version = client.connected_server_version
        yield check_server((version.major, version.minor, version.patch), _address(client))
        async for finding in _jetstream(client, config):
            yield finding
    finally:
        await client.close()


async def _connect(config: Config, on_error: Any) -> Client:
    return await nats.connect(
        config.broker_url.split(","),
        name="timer-service-doctor",
        allow_reconnect=False,
        connect_timeout=_TIMEOUT_SECONDS,
        max_reconnect_attempts=1,  # or a first connect is tried for two minutes
        reconnect_time_wait=0,
        error_cb=on_error,
        inbox_prefix=_INBOX_PREFIX,
        **nats_login(config).options(),
    )


def _address(client: Client) -> str:
    return client.connected_url.netloc.rpartition("@")[2] if client.connected_url else "?"


async def _jetstream(client: Client, config: Config) -> AsyncIterator[Finding]:
    subjects = Subjects(config.subject_prefix)
    async for finding in _permissions(client, config, subjects):
        yield finding
    clock: Finding | None = None
    for kind in _KEPT:
        asked_at, info = datetime.now(UTC), await _ask(client, f"$JS.API.STREAM.INFO.{subjects.stream(kind)}")
        if info is None:
            remedy = "Enable JetStream, and permit this user to ask for it."
            yield Finding(f"stream {subjects.stream(kind)}", Status.FAIL, "JetStream does not answer", remedy)
        elif "error" not in info:
            clock = clock or _clock(asked_at, info, config)
            for finding in check_stream(kind, subjects.pattern(kind), info):
                yield finding
        else:
            yield _stream_error(subjects.stream(kind), info["error"], config)
    yield await _consumer(client, subjects)
    if clock is not None:
        yield clock
    yield _SYNC


def _clock(asked_at: datetime, info: dict[str, Any], config: Config) -> Finding:
    """Compare clocks: the broker wrote its time somewhere between the question and the answer."""
    answered_at = datetime.now(UTC)
    half = (answered_at - asked_at) / 2
    skew = asked_at + half - datetime.fromisoformat(info["ts"])
    return check_broker_clock(skew, half, decides=config.engine == "sqlite")


def _stream_error(name: str, error: dict[str, Any], config: Config) -> Finding:
    if error.get("code") == _NOT_FOUND:
        return check_missing_stream(name, managed=config.manage_streams)
    return Finding(f"stream {name}", Status.FAIL, error.get("description", "unknown error"), "Enable JetStream.")


async def _permissions(client: Client, config: Config, subjects: Subjects) -> AsyncIterator[Finding]:
    hints = [] if config.engine == "sqlite" else [subjects.hint()]  # to and from other instances
    publishes = needed_publishes(
        [subjects.pattern(Kind.EVENT), subjects.pattern(Kind.DEAD_LETTER), f"{config.reply_prefix}>", *hints],
        map(subjects.stream, _KEPT),
        subjects.stream(Kind.COMMAND),
        DURABLE,
    )
    subscribes = [subjects.pattern(Kind.QUERY), f"{_INBOX_PREFIX}.>", *hints]
    who = await _ask(client, "$SYS.REQ.USER.INFO")
    if who is None or "data" not in who:
        text = "the broker does not tell this user's permissions"
        yield Finding("permissions", Status.NOTE, text, "To see them here, allow publishing $SYS.REQ.USER.INFO.")
        return
    for finding in check_permissions(who["data"].get("permissions") or {}, publishes, subscribes):
        yield finding


async def _consumer(client: Client, subjects: Subjects) -> Finding:
    info = await _ask(client, f"$JS.API.CONSUMER.INFO.{subjects.stream(Kind.COMMAND)}.{DURABLE}")
    check = f"consumer {DURABLE}"
    if info is None:
        remedy = f"To see it here, allow publishing $JS.API.CONSUMER.INFO.{subjects.stream(Kind.COMMAND)}.{DURABLE}."
        return Finding(check, Status.NOTE, "the broker does not tell", remedy)
    if "error" in info:
        return Finding(check, Status.WARN, "is missing", "The service makes it when it starts.")
    waiting, held = info["num_pending"], info["num_ack_pending"]
    return Finding(check, Status.OK, f"{waiting} commands wait, {held} are being handled")


async def _ask(client: Client, subject: str) -> dict[str, Any] | None:
    """Return an answer of the server; None when there is none, as when the question is not permitted."""
    try:
        answer: dict[str, Any] = json.loads((await client.request(subject, timeout=_TIMEOUT_SECONDS)).data)
    except nats.errors.Error:
        return None
    return answer
