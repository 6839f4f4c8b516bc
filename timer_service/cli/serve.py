"""`timer-service serve`."""

import logging
import os

from timer_service.app.startup import open_app
from timer_service.cli.process import run_async, serve_until_signalled
from timer_service.config import Config, load_config, unknown_settings
from timer_service.logs import configure_logs

log = logging.getLogger(__name__)


def serve() -> None:
    """Run the service. Settings come from TIMER_* variables and .env (see .env.example)."""
    config = load_config()
    configure_logs(config)
    for warning in unknown_settings(os.environ):
        log.warning(warning)
    run_async(_serve(config))


async def _serve(config: Config) -> None:
    async with open_app(config) as app:
        await serve_until_signalled(app, config.shutdown_timeout)
