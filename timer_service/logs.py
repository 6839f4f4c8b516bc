"""Structured logs: JSON lines, or coloured text on a terminal."""

import logging
import sys

import structlog

from timer_service.config import Config


def configure_logs(config: Config) -> None:
    """Send the logs of the service and its libraries to stderr, with the `extra` fields."""
    console = config.log_format == "console" or (config.log_format is None and sys.stderr.isatty())
    renderer = structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
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
                *([] if console else [structlog.processors.format_exc_info]),
                renderer,
            ],
        )
    )
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler], force=True)
    logging.getLogger("aiosqlite").setLevel(logging.WARNING)  # it logs every statement
