"""`timer-service doctor`: looks at what the service stands on, changes nothing, and says what to mend."""

import json
import shutil
import sqlite3
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import nats
import nats.errors
import typer
from nats.aio.client import Client

from timer_service.adapters.nats.streams import DURABLE
from timer_service.adapters.nats.subjects import Subjects
from timer_service.app import migrations, nats_login
from timer_service.cli.checks import (
    Finding,
    Status,
    check_missing_stream,
    check_permissions,
    check_schema,
    check_server,
    check_skew,
    check_sqlite,
    check_stream,
    needed_publishes,
)
from timer_service.cli.running import run
from timer_service.config import Config, load_config
from timer_service.core.errors import StartError
from timer_service.core.message import Kind

_TIMEOUT_SECONDS = 2
_INBOX_PREFIX = "_INBOX_TIMER_SERVICE"  # the service's own: its user may be fenced to it
_KEPT = (Kind.COMMAND, Kind.EVENT, Kind.DEAD_LETTER)
_NOT_FOUND = 404
_INDENT = " " * 6
_COLOURS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "red"}
_APPLIED = "SELECT number, name, checksum FROM schema_migrations"
_SYNC = Finding(
    "durability",
    Status.NOTE,
    "whether the broker syncs before it acknowledges can't be seen from here",
    "Run nats-server with jetstream { sync_interval: always }, or a power cut can lose what it has acknowledged.",
)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002 - typer's way
) -> None:
    """Check the broker, its streams, the database and the clock, with the service's own settings."""
    findings = run(_examine(load_config()))
    failed = any(each.status is Status.FAIL for each in findings)
    if as_json:
        typer.echo(json.dumps({"ok": not failed, "checks": [_document(each) for each in findings]}))
    else:
        for each in findings:
            _print(each)
    raise typer.Exit(1 if failed else 0)


def _document(finding: Finding) -> dict[str, str]:
    remedy = {} if finding.remedy is None else {"remedy": finding.remedy}
    return {"check": finding.check, "status": finding.status, "message": finding.message, **remedy}


def _print(finding: Finding) -> None:
    status = f"{finding.status:<{len(_INDENT) - 2}}"
    first, *more = _wrapped(f"{finding.check}: {finding.message}")
    typer.echo(f"{typer.style(status, fg=_COLOURS.get(finding.status))}  {first}")
    for line in (*more, *_wrapped(finding.remedy or "")):
        typer.echo(f"{_INDENT}{line}")


def _wrapped(text: str) -> list[str]:
    """Break lines between words for a terminal only: what is piped is searched by line."""
    if not sys.stdout.isatty():
        return [text] if text else []
    width = shutil.get_terminal_size().columns - len(_INDENT)
    return textwrap.wrap(text, max(width, len(_INDENT)), break_long_words=False, break_on_hyphens=False)


async def _examine(config: Config) -> list[Finding]:
    return [*[each async for each in _broker(config)], *_database(config)]


async def _broker(config: Config) -> AsyncIterator[Finding]:
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
            clock = clock or _skew(asked_at, info)
            for finding in check_stream(kind, subjects.pattern(kind), info):
                yield finding
        else:
            yield _stream_error(subjects.stream(kind), info["error"], config)
    yield await _consumer(client, subjects)
    if clock is not None:
        yield clock
    yield _SYNC


def _skew(asked_at: datetime, info: dict[str, Any]) -> Finding:
    """Compare clocks: the broker wrote its time somewhere between the question and the answer."""
    answered_at = datetime.now(UTC)
    half = (answered_at - asked_at) / 2
    return check_skew(asked_at + half - datetime.fromisoformat(info["ts"]), half)


def _stream_error(name: str, error: dict[str, Any], config: Config) -> Finding:
    if error.get("code") == _NOT_FOUND:
        return check_missing_stream(name, managed=config.manage_streams)
    return Finding(f"stream {name}", Status.FAIL, error.get("description", "unknown error"), "Enable JetStream.")


async def _permissions(client: Client, config: Config, subjects: Subjects) -> AsyncIterator[Finding]:
    publishes = needed_publishes(
        [subjects.pattern(Kind.EVENT), subjects.pattern(Kind.DEAD_LETTER), f"{config.reply_prefix}>"],
        map(subjects.stream, _KEPT),
        subjects.stream(Kind.COMMAND),
        DURABLE,
    )
    subscribes = [subjects.pattern(Kind.QUERY), f"{_INBOX_PREFIX}.>"]
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


def _database(config: Config) -> Iterator[Finding]:
    yield check_sqlite(sqlite3.sqlite_version_info)
    if not config.db_path.exists():
        text = f"there is no {config.db_path} yet"
        yield Finding("database", Status.WARN, text, "The service makes it when it starts; else check TIMER_DB_PATH.")
        return
    try:
        applied = _applied(config)
    except sqlite3.Error as error:
        yield Finding("database", Status.FAIL, f"can't read {config.db_path}: {error}", "Check TIMER_DB_PATH.")
    else:
        yield check_schema(applied, migrations(config.engine), automatic=config.auto_migrate)


def _applied(config: Config) -> dict[int, tuple[str, str]]:
    """Read which migrations are applied: without the lock, so that a running service is not disturbed.

    Without a `-wal` beside it nobody has the file open, and it is read as it is: otherwise SQLite would make that file,
    owned by whoever runs this.
    """
    how = "mode=ro" if Path(f"{config.db_path}-wal").exists() else "immutable=1"
    with closing(sqlite3.connect(f"{config.db_path.absolute().as_uri()}?{how}", uri=True, timeout=1)) as connection:
        try:
            return {number: (name, checksum) for number, name, checksum in connection.execute(_APPLIED)}
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return {}
            raise
