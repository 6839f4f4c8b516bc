"""The broker, with the permissions of the service's user."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client

from timer_service.adapters.nats.log import CONSUMER
from timer_service.adapters.nats.subjects import Subjects
from timer_service.app.login import nats_login
from timer_service.cli.doctor.clocks import check_broker_clock
from timer_service.cli.doctor.consumer import check_consumer
from timer_service.cli.doctor.event_limits import check_event_limits
from timer_service.cli.doctor.exposure import check_exposure, check_rights
from timer_service.cli.doctor.finding import Finding, Skew, Status
from timer_service.cli.doctor.permissions import check_permissions, needed_publishes
from timer_service.cli.doctor.streams import check_missing_stream, check_stream
from timer_service.client.connection import url_without_login
from timer_service.config import Config
from timer_service.core.values.errors import StartError
from timer_service.core.values.message import Kind

_TIMEOUT_SECONDS = 2
_LOOKS = 5
_PAUSE_SECONDS = 0.2
_INBOX_PREFIX = "_INBOX_TIMER_SERVICE"  # the service's own prefix: its user may have no other
_KINDS = (Kind.COMMAND, Kind.EVENT, Kind.DEAD_LETTER)
_NOT_FOUND = 404
_ATOMIC_SERVER = (2, 12)
_SYNC = Finding(
    "durability",
    Status.NOTE,
    "doctor cannot see whether the broker syncs to disk before it acknowledges",
    "Run nats-server with jetstream { sync_interval: always }. Otherwise a power cut can lose acknowledged commands.",
)


async def check_broker(config: Config, *, syncs: bool, runs: bool) -> AsyncIterator[Finding]:
    """Connect, and check the server, the permissions, the streams, the consumer and the clock.

    `syncs`: the server is known to sync to disk before it acknowledges. `runs`: a service that should read commands
    answers on its own page.
    """
    errors: list[str] = []

    async def remember(error: Exception) -> None:
        errors.append(str(error) or type(error).__name__)

    try:
        client = await _connect(config, remember)
    except (nats.errors.Error, OSError, StartError) as error:
        reason = errors[-1] if errors else str(error)
        text = f"cannot connect to {url_without_login(config.broker_url)}: {reason}"
        remedy = "Check that the server runs, and check --server or TIMER_BROKER_URL, and TIMER_NATS_*."
        yield Finding("broker", Status.FAIL, text, remedy)
        return
    try:
        version = client.connected_server_version
        yield check_server((version.major, version.minor, version.patch), _address(client))
        async for finding in _check_access(client):
            yield finding
        async for finding in _check_jetstream(client, config, runs=runs):
            yield finding
        if not syncs:
            yield _SYNC
    finally:
        await client.close()


def check_server(version: tuple[int, int, int], url: str) -> Finding:
    """Check the version of the server."""
    text = f"nats-server {'.'.join(map(str, version))} at {url}"
    if version[:2] < _ATOMIC_SERVER:
        return Finding("broker", Status.WARN, f"{text} has no atomic batches", "Run nats-server 2.12 or newer.")
    return Finding("broker", Status.OK, text)


async def _connect(config: Config, on_error: Any) -> Client:
    return await nats.connect(
        config.broker_url.split(","),
        name="timer-service-doctor",
        allow_reconnect=False,
        connect_timeout=_TIMEOUT_SECONDS,
        max_reconnect_attempts=1,  # with the default, the first connect takes two minutes to fail
        reconnect_time_wait=0,
        error_cb=on_error,
        inbox_prefix=_INBOX_PREFIX,
        **nats_login(config).options(),
    )


def _address(client: Client) -> str:
    return client.connected_url.netloc.rpartition("@")[2] if client.connected_url else "?"


async def _check_access(client: Client) -> AsyncIterator[Finding]:
    url, server = client.connected_url, client._server_info  # noqa: SLF001 - the driver has no public access to it
    encrypted = bool(server.get("tls_required")) or (url is not None and url.scheme == "tls")
    authenticated = _has_logins(client)
    host = url.hostname if url else None
    for finding in check_exposure(host or "?", encrypted=encrypted, authenticated=authenticated):
        yield finding
    if authenticated:
        for finding in check_rights(await _request(client, "$JS.API.INFO")):
            yield finding


def _has_logins(client: Client) -> bool:
    return bool(client._server_info.get("auth_required"))  # noqa: SLF001 - the driver has no public access to it


async def _check_jetstream(client: Client, config: Config, *, runs: bool) -> AsyncIterator[Finding]:
    subjects = Subjects(config.subject_prefix)
    async for finding in _check_permissions(client, config, subjects):
        yield finding
    clock: Finding | None = None
    for kind in _KINDS:
        name = subjects.stream(kind)
        asked_at, info = datetime.now(UTC), await _request(client, f"$JS.API.STREAM.INFO.{name}")
        if info is None:
            remedy = "Enable JetStream, and permit this user to publish to $JS.API.STREAM.INFO.*."
            yield Finding(f"stream {name}", Status.FAIL, "JetStream does not answer", remedy)
        elif "error" not in info:
            clock = clock or _check_clock(asked_at, info, config)
            for finding in check_stream(kind, subjects.pattern(kind), info, shared=_has_logins(client)):
                yield finding
            if kind is Kind.EVENT and _has_logins(client):
                for finding in check_event_limits(config.limits, info["config"]):
                    yield finding
        else:
            yield _stream_error(name, info["error"], config)
    yield await _check_consumer(client, subjects, runs=runs)
    if clock is not None:
        yield clock


def _check_clock(asked_at: datetime, info: dict[str, Any], config: Config) -> Finding:
    """Compare clocks: the broker read its clock between the request and the reply."""
    replied_at = datetime.now(UTC)
    half = (replied_at - asked_at) / 2
    skew = Skew(asked_at + half - datetime.fromisoformat(info["ts"]), half)
    return check_broker_clock(skew, decides=config.engine == "sqlite")


def _stream_error(name: str, error: dict[str, Any], config: Config) -> Finding:
    if error.get("code") == _NOT_FOUND:
        return check_missing_stream(name, managed=config.manage_streams)
    return Finding(f"stream {name}", Status.FAIL, error.get("description", "unknown error"), "Enable JetStream.")


async def _check_permissions(client: Client, config: Config, subjects: Subjects) -> AsyncIterator[Finding]:
    hints = [] if config.engine == "sqlite" else [subjects.hint()]  # to and from other instances
    publishes = needed_publishes(
        [subjects.pattern(Kind.EVENT), subjects.pattern(Kind.DEAD_LETTER), f"{config.reply_prefix}>", *hints],
        map(subjects.stream, _KINDS),
        subjects.stream(Kind.COMMAND),
        CONSUMER,
    )
    subscribes = [subjects.pattern(Kind.QUERY), subjects.pattern(Kind.REQUEST), f"{_INBOX_PREFIX}.>", *hints]
    user = await _request(client, "$SYS.REQ.USER.INFO")
    if user is None or "data" not in user:
        text = "the broker does not show the permissions of this user"
        yield Finding("permissions", Status.NOTE, text, "To see them here, allow publishing to $SYS.REQ.USER.INFO.")
        return
    for finding in check_permissions(user["data"].get("permissions") or {}, publishes, subscribes):
        yield finding


async def _check_consumer(client: Client, subjects: Subjects, *, runs: bool) -> Finding:
    """Look several times: between two pull requests, a running service is not visible."""
    subject = f"$JS.API.CONSUMER.INFO.{subjects.stream(Kind.COMMAND)}.{CONSUMER}"
    info = await _request(client, subject)
    if info is None:
        text = "the broker does not show this consumer"
        return Finding(f"consumer {CONSUMER}", Status.NOTE, text, f"To see it here, allow publishing to {subject}.")
    for _ in range(_LOOKS - 1):
        if "error" in info or info["num_waiting"]:
            break
        await asyncio.sleep(_PAUSE_SECONDS)
        info = await _request(client, subject) or info
    return check_consumer(CONSUMER, info, runs=runs)


async def _request(client: Client, subject: str) -> dict[str, Any] | None:
    """Return the reply of the server, or None if there is none, for example because the request is not permitted."""
    try:
        reply: dict[str, Any] = json.loads((await client.request(subject, timeout=_TIMEOUT_SECONDS)).data)
    except nats.errors.Error:
        return None
    return reply
