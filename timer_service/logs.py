"""Structured logs: JSON lines, or coloured text on a terminal."""

import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog

from timer_service.config import Config
from timer_service.core.values.error_text import error_trace
from timer_service.core.values.visible import escape_hidden


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


def _escape_texts(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Escape what cannot be seen in the fields of a line for a terminal: an id could make it read differently."""
    return {
        name: escape_hidden(value) if isinstance(value, str) and name != "exception" else value
        for name, value in line.items()
    }
