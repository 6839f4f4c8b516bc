"""The command: runs all checks and prints their findings."""

import asyncio
import json
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence

import typer

from timer_service.cli.connection import Server, client_config
from timer_service.cli.dev_server import DevServer, find_dev_server
from timer_service.cli.doctor.broker import check_broker
from timer_service.cli.doctor.clocks import check_clocks
from timer_service.cli.doctor.finding import Finding, Status
from timer_service.cli.doctor.flows import check_page
from timer_service.cli.doctor.sqlite import check_sqlite
from timer_service.cli.healthcheck import read_readiness
from timer_service.cli.output import one_line, style
from timer_service.cli.parameters import AsJson
from timer_service.cli.process import run_async
from timer_service.config import Config
from timer_service.nats_client import UNREADABLE_ANSWER

_INDENT = " " * 6
_CLOCKS = 2
"""The clocks of the broker and of the database."""
_COLOURS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "red"}


def doctor(as_json: AsJson = False, server: Server = None) -> None:
    """Check the service, the broker, its streams, the database and the clocks, with the settings of the service.

    If a `dev` runs in this folder and no other broker is named, doctor checks its broker and its database.
    """
    config, dev = client_config(server), find_dev_server()
    if dev is not None and dev.broker_url == config.broker_url:
        config = dev.configure(config)
    else:
        dev = None
    findings = run_async(_check_all(config, dev))
    failed = any(finding.status is Status.FAIL for finding in findings)
    if as_json:
        typer.echo(json.dumps({"ok": not failed, "checks": [_document(finding) for finding in findings]}))
    else:
        for finding in findings:
            _print(finding)
        typer.echo(f"\n{summary(findings)}")
    raise typer.Exit(1 if failed else 0)


def summary(findings: Iterable[Finding]) -> str:
    """Return how many checks ended in which way."""
    counts = Counter(finding.status for finding in findings)
    parts = [
        f"{counts[Status.OK]} ok",
        _count(counts[Status.WARN], "warning"),
        _count(counts[Status.FAIL], "failure"),
        *([_count(counts[Status.NOTE], "note")] if counts[Status.NOTE] else []),
    ]
    return ", ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


async def _check_all(config: Config, dev: DevServer | None) -> Sequence[Finding]:
    findings: list[Finding] = []
    if dev is not None:
        text = f"the `dev` that runs in this folder (process {dev.pid}, database {dev.db_path})"
        findings.append(Finding("target", Status.OK, text))
    page = await asyncio.to_thread(read_readiness, config)
    findings += check_page(config, page)
    runs = page is not None and "commands" in page
    findings += [finding async for finding in _check_broker(config, syncs=dev is not None, runs=runs)]
    if config.postgres_url is None:
        return [*findings, *check_sqlite(config)]
    findings += await _check_postgres(config, config.postgres_url)
    skews = [finding.skew for finding in findings if finding.skew is not None]
    return [*findings, check_clocks(*skews)] if len(skews) == _CLOCKS else findings


async def _check_broker(config: Config, *, syncs: bool, runs: bool) -> AsyncIterator[Finding]:
    try:
        async for finding in check_broker(config, syncs=syncs, runs=runs):
            yield finding
    except UNREADABLE_ANSWER as error:
        text = f"sent an answer that doctor cannot read ({type(error).__name__})"
        yield Finding("broker", Status.FAIL, text, "Check that --server or TIMER_BROKER_URL names a nats-server.")


async def _check_postgres(config: Config, url: str) -> list[Finding]:
    try:
        from timer_service.cli.doctor.postgres import check_postgres  # noqa: PLC0415 - an extra
    except ImportError:
        remedy = "pip install 'timer-service[postgres]'"
        return [Finding("database", Status.FAIL, "TIMER_DATABASE_URL needs asyncpg, which is not installed", remedy)]
    return [finding async for finding in check_postgres(config, url)]


def _document(finding: Finding) -> dict[str, str]:
    remedy = {} if finding.remedy is None else {"remedy": finding.remedy}
    return {"check": finding.check, "status": finding.status, "message": finding.message, **remedy}


def _print(finding: Finding) -> None:
    padding = " " * (len(_INDENT) - len(finding.status))
    first, *more = _wrap(one_line(f"{finding.check}: {finding.message}"))
    typer.echo(f"{style(finding.status, colour=_COLOURS.get(finding.status))}{padding}{first}")
    for line in (*more, *_wrap(one_line(finding.remedy or ""))):
        typer.echo(f"{_INDENT}{line}")


def _wrap(text: str) -> list[str]:
    """Break a text between words for a terminal. Piped output keeps one line, so that it can be searched."""
    if not sys.stdout.isatty():
        return [text] if text else []
    width = shutil.get_terminal_size().columns - len(_INDENT)
    return textwrap.wrap(text, max(width, len(_INDENT)), break_long_words=False, break_on_hyphens=False)
