"""`timer-service doctor`: read-only checks of the service, the broker, its streams, the database and the clocks."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import timedelta

import typer

from timer_service.cli.connection import Server, dev_config, find_target
from timer_service.cli.doctor.database import check_sqlite
from timer_service.cli.doctor.finding import Finding, Skew, Status
from timer_service.cli.healthcheck import no_answer_text, read_readiness
from timer_service.cli.output import format_count, one_line, style
from timer_service.cli.parameters import AsJson
from timer_service.cli.process import run_async
from timer_service.config import Config
from timer_service.dev_server import find_dev_server
from timer_service.nats_client import UNREADABLE_ANSWER

_COLOURS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "red"}
_TOLERATED = timedelta(seconds=1)
CheckBroker = Callable[[Config], Awaitable[Sequence[Finding | Skew]]]
_SYNC = Finding(
    "durability",
    Status.NOTE,
    "doctor cannot see whether the broker syncs to disk before it acknowledges",
    "Run nats-server with jetstream { sync_interval: always }. Otherwise a power cut can lose acknowledged commands.",
)


def doctor(as_json: AsJson = False, server: Server = None) -> None:
    """Check the service, the broker, its streams, the database and the clocks, with the settings of the service.

    If a `dev` runs in this folder and no other broker is named, doctor checks its broker and its database.
    """
    config, broker = find_target(server)
    dev = broker.dev or find_dev_server()
    if dev is not None and dev.broker_url == config.broker_url:  # also if its URL was given
        config = dev_config(config, dev)
        text = f"{broker}, process {dev.pid}, database {dev.db_path}"
        first = [Finding("target", Status.OK, text)]  # its broker syncs to disk
    else:
        first = [Finding("target", Status.OK, str(broker)), *([_SYNC] if config.broker == "nats" else ())]
    findings = [*first, *run_async(check_all(config))]
    failed = any(finding.status is Status.FAIL for finding in findings)
    if as_json:
        checks = [{name: text for name, text in each._asdict().items() if text is not None} for each in findings]
        typer.echo(json.dumps({"ok": not failed, "checks": checks}))
    else:
        print_findings(findings)
    raise typer.Exit(1 if failed else 0)


async def check_all(config: Config) -> Sequence[Finding]:
    """Run all checks."""
    page = await asyncio.to_thread(read_readiness, config)
    found = [*await _check_broker(config), *await _check_database(config)]
    findings = [each for each in found if isinstance(each, Finding)]
    match [each for each in found if isinstance(each, Skew)]:
        case [broker, database]:
            findings.append(check_clock(broker, database))
        case _:
            pass  # a clock could not be read, and another finding says why
    return [*check_page(config, page), *findings]


def check_page(config: Config, page: Mapping[str, str] | None) -> Iterator[Finding]:
    """Return a finding for each flow on the readiness page. None: no service answers."""
    if page is None:
        remedy = "Run doctor on the machine of the service, with its TIMER_HTTP_HOST and TIMER_HTTP_PORT."
        yield Finding("service", Status.NOTE, no_answer_text(config), remedy)
    for name, reason in (page or {}).items():
        check = "service" if name == "service" else f"flow of {name}"
        if reason == "ok":
            yield Finding(check, Status.OK, "ok")
        elif name == "service":
            yield Finding(check, Status.WARN, reason, "Start it again if it does not start by itself.")
        else:
            yield Finding(check, Status.FAIL, reason, "Fix the part that the reason names.")


def check_clock(broker: Skew, database: Skew) -> Finding:
    """Compare the clock by which timers fire, that of the database, with that of the broker."""
    ahead = broker.value - database.value  # how far the database's clock is ahead of the broker's
    uncertainty = broker.uncertainty + database.uncertainty
    relation = "ahead of" if ahead > timedelta() else "behind"
    text = f"{database.clock} is {abs(ahead).total_seconds():.3f} s {relation} {broker.clock}"
    if abs(ahead) - uncertainty <= _TOLERATED:
        return Finding("clock", Status.OK, f"{text} (± {uncertainty.total_seconds():.3f} s)")
    remedy = (
        f"Synchronize both machines (NTP). Timers fire by {database.clock}. Timers with dueIn count from the broker's "
    )
    return Finding("clock", Status.WARN, text, f"{remedy}clock: if it is behind, they are early by as much.")


def print_findings(findings: Sequence[Finding]) -> None:
    """Print each finding with its remedy, and how many checks ended in which way."""
    for finding in findings:
        status = style(finding.status, colour=_COLOURS.get(finding.status)) + " " * (6 - len(finding.status))
        typer.echo(status + one_line(f"{finding.check}: {finding.message}"))
        if finding.remedy:
            typer.echo(f"      {one_line(finding.remedy)}")
    counts = Counter(finding.status for finding in findings)
    notes = [format_count(counts[Status.NOTE], "note")] if counts[Status.NOTE] else []
    warnings, failures = format_count(counts[Status.WARN], "warning"), format_count(counts[Status.FAIL], "failure")
    typer.echo("\n" + ", ".join([f"{counts[Status.OK]} ok", warnings, failures, *notes]))


async def _check_broker(config: Config) -> Sequence[Finding | Skew]:
    """Check the broker. The address may be that of another program, which can answer anything."""
    try:
        return await _checks(config.broker)(config)
    except ModuleNotFoundError as error:
        text, remedy = f"needs {error.name}, which is not installed", f"pip install 'timer-service[{config.broker}]'"
        return [Finding("broker", Status.FAIL, text, remedy)]
    except UNREADABLE_ANSWER as error:
        text = f"sent an answer that doctor cannot read ({type(error).__name__})"
        remedy = "Check that --server or TIMER_BROKER_URL names a broker with this scheme."
        return [Finding("broker", Status.FAIL, text, remedy)]


def _checks(broker: str) -> CheckBroker:
    """Return the checks of a broker. Raises ModuleNotFoundError if its package is not installed."""
    if broker == "redis":
        from timer_service.cli.doctor.redis import check_redis  # noqa: PLC0415 - an extra

        return check_redis
    if broker == "rabbitmq":
        from timer_service.cli.doctor.rabbitmq import check_rabbitmq  # noqa: PLC0415 - an extra

        return check_rabbitmq
    from timer_service.cli.doctor.nats import check_nats  # noqa: PLC0415 - a service uses one broker

    return check_nats


async def _check_database(config: Config) -> Sequence[Finding | Skew]:
    """Check the database of the settings. The driver of PostgreSQL may be missing."""
    if config.postgres_url is None:
        return list(check_sqlite(config))
    try:
        from timer_service.cli.doctor.postgres import check_postgres  # noqa: PLC0415 - an extra
    except ImportError:
        text = "TIMER_DATABASE_URL needs asyncpg, which is not installed"
        return [Finding("database", Status.FAIL, text, "pip install 'timer-service[postgres]'")]
    return await check_postgres(config, config.postgres_url)
