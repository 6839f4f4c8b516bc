"""Outcomes of commands and rejections, as commands print them."""

import json
from collections.abc import Mapping
from typing import NoReturn

import typer

from timer_service.cli.output.text import one_line
from timer_service.client import CommandError, Outcome, QueryError
from timer_service.core.values.codec import plain_words


def print_outcome(
    outcome: Outcome,
    subject: str,
    *,
    state: str,
    explanations: Mapping[str, str],
    has_effect: bool,
    as_json: bool,
) -> None:
    """Print an outcome. Exits with 1 if the command had no effect.

    `subject` names the timer, signal, schedule or run, and `state` describes it. `explanations` has a sentence for the
    outcomes that need one.
    """
    if as_json:
        typer.echo(json.dumps(outcome.document()))
    else:
        explanation = explain(outcome, explanations)
        reason = f": {explanation}" if explanation else ""
        described = f" ({state})" if state else ""
        typer.echo(one_line(f"{outcome.name}: {subject}{described}{reason}"), err=not has_effect)
    if not has_effect:
        raise typer.Exit(1)


def explain(outcome: Outcome, explanations: Mapping[str, str]) -> str | None:
    """Return a sentence for an outcome that needs one."""
    if (limit := outcome.limit) is not None:
        return f"the tenant may have {limit.most} of {limit.name}; see `timer-service tenants usage`"
    return explanations.get(outcome.name)


def exit_not_found(subject: str) -> NoReturn:
    """Print that a timer, signal, schedule or run does not exist, and exit with 1."""
    typer.echo(f"not found: {one_line(subject)}", err=True)
    raise typer.Exit(1)


def rejection_text(error: CommandError | QueryError) -> str:
    """Return why the service refused a command or query, with the wrong fields as the user wrote them."""
    if not error.errors:
        return one_line(str(error))
    faults = (f"{each['path'].removeprefix('payload.')} {plain_words(each['reason'])}" for each in error.errors)
    return one_line(f"{error.code}: {'; '.join(faults)}")
