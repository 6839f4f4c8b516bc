"""Structured logs: JSON lines, or coloured text on a terminal."""

import logging
import sys
import traceback
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import structlog

from timer_service.config import Config
from timer_service.core.values.error_text import error_text
from timer_service.visible import escape_hidden

_MOST_CAUSES = 10


def configure_logs(config: Config) -> None:
    """Send the logs of the service and its libraries to stderr, with the `extra` fields.

    Tracebacks show neither local variables nor texts of errors that can contain values of users.
    """
    log_format = config.log_format or ("console" if sys.stderr.isatty() else "json")
    renderers = (
        [
            _escape_texts,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ]
        if log_format == "console"
        else [structlog.processors.JSONRenderer()]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.stdlib.ExtraAdder(),
                structlog.processors.TimeStamper(fmt="iso", utc=True),
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.ExceptionRenderer(lambda exc_info: error_trace(exc_info[1])),
                *renderers,
            ],
        )
    )
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler], force=True)
    least = max(logging.getLogger().level, logging.WARNING)
    logging.getLogger("aiosqlite").setLevel(least)  # it logs every statement


def error_trace(error: BaseException) -> str:
    """Return the traceback of an error and of its causes, each with its `error_text` and without local variables."""
    traces = (f"{''.join(traceback.format_tb(each.__traceback__))}{error_text(each)}" for each in _chain(error))
    return "\n".join(traces)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, and of a group also its errors and their causes: each once, at most ten."""
    to_visit, visited = [error], set[int]()
    while to_visit and len(visited) < _MOST_CAUSES:
        each = to_visit.pop()
        if id(each) in visited:
            continue
        visited.add(id(each))
        yield each
        cause = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
        if cause is not None:
            to_visit.append(cause)
        if isinstance(each, BaseExceptionGroup):
            to_visit += each.exceptions


def _escape_texts(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Escape what cannot be seen in the fields of a line for a terminal: an id could make it read differently."""
    return {
        name: escape_hidden(value) if isinstance(value, str) and name != "exception" else value
        for name, value in line.items()
    }
