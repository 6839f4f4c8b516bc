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
    console = config.log_format == "console" or (config.log_format is None and sys.stderr.isatty())
    rendering = (
        [_escape_texts, structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if console
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
                structlog.processors.ExceptionRenderer(_format_error),
                *rendering,
            ],
        )
    )
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler], force=True)
    least = max(logging.getLogger().level, logging.WARNING)
    logging.getLogger("aiosqlite").setLevel(least)  # it logs every statement


def _format_error(exc_info: Any) -> str:
    """Return the text of what `sys.exc_info` returned."""
    return error_trace(exc_info[1])


def error_trace(error: BaseException) -> str:
    """Return the traceback of an error and of its causes, each with its `error_text` and without local variables."""
    return "\n".join(_trace(each) for each in _chain(error))


def _trace(error: BaseException) -> str:
    return f"{''.join(traceback.format_tb(error.__traceback__))}{error_text(error)}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that, and the errors of a group."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < _MOST_CAUSES:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        cause = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
        waiting += [cause] if cause is not None else []
        waiting += each.exceptions if isinstance(each, BaseExceptionGroup) else ()


def _escape_texts(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Escape what cannot be seen in the fields of a line for a terminal: an id could make it read differently."""
    return {
        name: escape_hidden(value) if isinstance(value, str) and name != "exception" else value
        for name, value in line.items()
    }
