"""The command: looks at everything, prints what was found."""

import json
import shutil
import sys
import textwrap
from typing import Annotated

import typer

from timer_service.cli.doctor.broker import look_at_broker
from timer_service.cli.doctor.finding import Finding, Status
from timer_service.cli.doctor.sqlite import look_at_sqlite
from timer_service.cli.running import run
from timer_service.config import Config, load_config

_INDENT = " " * 6
_COLOURS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "red"}


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


async def _examine(config: Config) -> list[Finding]:
    broker = [each async for each in look_at_broker(config)]
    if config.postgres_url is None:
        return [*broker, *look_at_sqlite(config)]
    return [*broker, *await _postgres(config, config.postgres_url)]


async def _postgres(config: Config, url: str) -> list[Finding]:
    try:
        from timer_service.cli.doctor.postgres import look_at_postgres  # noqa: PLC0415 - an extra
    except ImportError:
        remedy = "pip install 'timer-service[postgres]'"
        return [Finding("database", Status.FAIL, "TIMER_DATABASE_URL needs asyncpg, which is not installed", remedy)]
    return [each async for each in look_at_postgres(config, url)]


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
