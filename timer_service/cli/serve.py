"""`timer-service serve`."""

import asyncio
import gc
import logging
import os
import signal

from timer_service.app.service import App
from timer_service.app.startup import open_app
from timer_service.cli.running import run
from timer_service.config import Config, load_config, unknown_settings
from timer_service.logs import configure_logs

log = logging.getLogger(__name__)

_NEW_OBJECTS_PER_COLLECTION = 20_000
"""Python's 700 has it search for cycles several times in each batch, of commands that hold none."""


def serve() -> None:
    """Run the service. Settings come from TIMER_* variables and .env (see .env.example)."""
    config = load_config()
    configure_logs(config)
    for warning in unknown_settings(os.environ):
        log.warning(warning)
    run(_serve(config))


async def _serve(config: Config) -> None:
    async with open_app(config) as app:
        await run_until_signalled(app)


async def run_until_signalled(app: App) -> None:
    """Serve until SIGTERM or SIGINT, then drain."""
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, app.stop)
    gc.freeze()  # modules and models live as long as the process
    gc.set_threshold(_NEW_OBJECTS_PER_COLLECTION)
    await app.run()
