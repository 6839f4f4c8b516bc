"""Checks of a NATS server, with the permissions of the service's user."""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import nats
import nats.errors
from nats.aio.client import Client

from timer_service.adapters.nats.log import CONSUMER
from timer_service.adapters.nats.subjects import Subjects, covers
from timer_service.app.login import login_options
from timer_service.cli.doctor.exposure import check_exposure
from timer_service.cli.doctor.finding import Finding, Skew, Status, measure_skew
from timer_service.cli.doctor.streams import check_missing_stream, check_stream
from timer_service.client.lookup import url_without_login
from timer_service.config import Config
from timer_service.core.values.address import Kind
from timer_service.core.values.errors import StartError

_TIMEOUT_SECONDS = 2
_LOOKS = 5
_PAUSE_SECONDS = 0.2
_INBOX_PREFIX = "_INBOX_TIMER_SERVICE"  # the service's own prefix: its user may have no other
_KINDS = (Kind.COMMAND, Kind.EVENT, Kind.DEAD_LETTER)
_NOT_FOUND = 404
_ATOMIC_SERVER = (2, 12)
_PAGE = "docs/security.md"
Answer = Mapping[str, Any]


async def check_nats(config: Config) -> Sequence[Finding | Skew]:
    """Connect, and check the server, the permissions, the streams, the consumer and the clock."""
    errors: list[str] = []

    async def remember(error: Exception) -> None:
        errors.append(str(error) or type(error).__name__)

    try:
        client = await nats.connect(
            config.broker_url.split(","),
            name="timer-service-doctor",
            allow_reconnect=False,
            connect_timeout=_TIMEOUT_SECONDS,
            max_reconnect_attempts=1,  # with the default, the first connect takes two minutes to fail
            reconnect_time_wait=0,
            error_cb=remember,
            inbox_prefix=_INBOX_PREFIX,
            **login_options(config),
        )
    except (nats.errors.Error, OSError, StartError) as error:
        reason = errors[-1] if errors else str(error)
        text = f"cannot connect to {url_without_login(config.broker_url)}: {reason}"
        remedy = "Check that the server runs, and check --server, or TIMER_BROKER_* and TIMER_NATS_*."
        return [Finding("broker", Status.FAIL, text, remedy)]
    async with client:
        return await _check_connected(client, config)


async def _check_connected(client: Client, config: Config) -> Sequence[Finding | Skew]:
    """Do the checks of a connection. The clock is read from the answer for the stream of commands."""
    url = client.connected_url or urlsplit("nats://unknown")
    server = client._server_info  # noqa: SLF001 - the driver has no public access to it
    encrypted = bool(server.get("tls_required")) or url.scheme == "tls"
    asks_for_login = bool(server.get("auth_required"))  # so tenants with other logins may share the streams
    version = client.connected_server_version
    subjects = Subjects(config.subject_prefix)
    found: list[Finding | Skew] = [
        check_server((version.major, version.minor, version.patch), url.netloc.rpartition("@")[2]),
        *check_exposure(url.hostname or "?", encrypted=encrypted, authenticated=asks_for_login),
    ]
    if asks_for_login:
        found += check_rights(await _request(client, "$JS.API.INFO"))
    found += check_permissions(await _request(client, "$SYS.REQ.USER.INFO"), *_needed(config, subjects))
    for kind in _KINDS:
        asked_at = datetime.now(UTC)
        info = await _request(client, f"$JS.API.STREAM.INFO.{subjects.stream(kind)}")
        if kind is Kind.COMMAND and info is not None and "ts" in info:
            reading = datetime.fromisoformat(info["ts"])
            found.append(measure_skew("the broker's clock", asked_at=asked_at, reading=reading))
        found += _check_stream(kind, info, subjects, managed=config.manage_streams, shared=asks_for_login)
    return [*found, await _check_consumer(client, subjects)]


def check_server(version: tuple[int, int, int], url: str) -> Finding:
    """Check the version of the server."""
    text = f"nats-server {'.'.join(map(str, version))} at {url}"
    if version[:2] < _ATOMIC_SERVER:
        return Finding("broker", Status.WARN, f"{text} has no atomic batches", "Run nats-server 2.12 or newer.")
    return Finding("broker", Status.OK, text)


def check_rights(account: Answer | None) -> Iterator[Finding]:
    """Check that the login cannot use the whole JetStream account. `account`: its INFO, if the server shows it."""
    if account is not None and "error" not in account:
        text = "this login may read and delete all streams of its account"
        yield Finding("permissions", Status.WARN, text, f"Give the service an account of its own ({_PAGE}).")


def check_permissions(user: Answer | None, publishes: Sequence[str], subscribes: Sequence[str]) -> Iterator[Finding]:
    """Check that the user may publish and subscribe to these subjects. `user`: as the server shows it."""
    if user is None or "data" not in user:
        text = "the broker does not show the permissions of this user"
        yield Finding("permissions", Status.NOTE, text, "To see them here, allow publishing to $SYS.REQ.USER.INFO.")
        return
    rules = user["data"].get("permissions") or {}
    denied = {
        verb: [subject for subject in wanted if not _is_permitted(subject, rules.get(verb) or {})]
        for verb, wanted in {"publish": publishes, "subscribe": subscribes}.items()
    }
    for verb, subjects in denied.items():
        if subjects:
            remedy = f"Allow the user of the service to {verb} to these subjects."
            yield Finding("permissions", Status.FAIL, f"may not {verb} {', '.join(subjects)}", remedy)
    if not any(denied.values()):
        yield Finding("permissions", Status.OK, "the user may publish and subscribe to all subjects of the service")


def check_consumer(info: Answer) -> Finding:
    """Check the consumer, as JetStream describes it. A service that reads always has a pull request open."""
    check = f"consumer {CONSUMER}"
    remedy = "If no service runs, start it: `timer-service serve`. If one runs, its flow of commands above says why."
    if "error" in info:
        return Finding(check, Status.WARN, "does not exist: no service has read commands here yet", remedy)
    commands = f"{info['num_pending']} commands are not read yet"
    if info.get("paused"):
        remedy = f"Resume it with `nats consumer resume {info['stream_name']} {CONSUMER}`."
        return Finding(check, Status.FAIL, f"is paused until {info.get('pause_until')}; {commands}", remedy)
    if info["num_waiting"]:
        return Finding(check, Status.OK, f"a service reads the commands; {commands}")
    return Finding(check, Status.WARN, f"no service reads the commands at the moment; {commands}", remedy)


def _check_stream(
    kind: Kind, info: Answer | None, subjects: Subjects, *, managed: bool, shared: bool
) -> Iterable[Finding]:
    """Check the answer to a request for a stream: `info` is None without an answer, and can be an error."""
    name = f"stream {subjects.stream(kind)}"
    if info is None:
        remedy = "Enable JetStream, and permit this user to publish to $JS.API.STREAM.INFO.*."
        return [Finding(name, Status.FAIL, "JetStream does not answer", remedy)]
    error = info.get("error")
    if error is None:
        return check_stream(kind, subjects.pattern(kind), info, managed=managed, shared=shared)
    if error.get("code") == _NOT_FOUND:
        return [check_missing_stream(name, managed=managed)]
    return [Finding(name, Status.FAIL, error.get("description", "unknown error"), "Enable JetStream.")]


async def _check_consumer(client: Client, subjects: Subjects) -> Finding:
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
    return check_consumer(info)


def _needed(config: Config, subjects: Subjects) -> tuple[list[str], list[str]]:
    """Return the subjects that the service publishes and subscribes to.

    STREAM.CREATE and STREAM.UPDATE are not needed once the streams exist.
    """
    hints = [] if config.engine == "sqlite" else [subjects.hint()]  # to and from other instances
    commands, verbs = subjects.stream(Kind.COMMAND), ("INFO", "DELETE", "DURABLE.CREATE", "MSG.NEXT")
    publishes = [
        subjects.pattern(Kind.EVENT),
        subjects.pattern(Kind.DEAD_LETTER),
        f"{config.reply_prefix}>",
        *hints,
        *(f"$JS.API.STREAM.INFO.{subjects.stream(kind)}" for kind in _KINDS),
        f"$JS.API.STREAM.MSG.GET.{commands}",
        *(f"$JS.API.CONSUMER.{verb}.{commands}.{CONSUMER}" for verb in verbs),
    ]
    subscribes = [subjects.pattern(Kind.QUERY), subjects.pattern(Kind.REQUEST), f"{_INBOX_PREFIX}.>", *hints]
    return publishes, subscribes


def _is_permitted(subject: str, rules: Mapping[str, Any]) -> bool:
    """Return whether a subject is allowed and not denied. Rules without `allow` allow everything."""
    allow, deny = rules.get("allow"), rules.get("deny") or ()
    allowed = not allow or any(covers(pattern, subject) for pattern in allow)
    return allowed and not any(covers(pattern, subject) for pattern in deny)


async def _request(client: Client, subject: str) -> dict[str, Any] | None:
    """Return the reply of the server, or None if there is none, for example because the request is not permitted."""
    try:
        reply: dict[str, Any] = json.loads((await client.request(subject, timeout=_TIMEOUT_SECONDS)).data)
    except nats.errors.Error:
        return None
    return reply
