"""The schema of the configured database."""

import logging

from timer_service.adapters.migrations import Migration, migrate, pending_migrations, read_migrations
from timer_service.app.storage import open_database
from timer_service.bundled_files import bundled
from timer_service.config import Config
from timer_service.core.database import Database
from timer_service.core.errors import StartError

log = logging.getLogger(__name__)


def migrations(engine: str) -> list[Migration]:
    """Return the migrations this version ships for an engine."""
    return [each for each in _shipped() if each.engine in {None, engine}]


async def apply_migrations(config: Config) -> list[Migration]:
    """Bring the configured database to head; return what was applied."""
    async with open_database(config) as database:
        return await migrate(database, _shipped())


async def unapplied_migrations(config: Config) -> list[Migration]:
    """Return what the configured database lacks."""
    async with open_database(config) as database:
        return await pending_migrations(database, _shipped())


async def bring_to_head(database: Database, *, auto: bool) -> None:
    """Apply what is pending, or raise `StartError` when there is something and it is not `auto`."""
    if auto:
        for applied in await migrate(database, _shipped()):
            log.info("migrated", extra={"migration": applied.name})
    elif pending := await pending_migrations(database, _shipped()):
        raise StartError(
            f"the schema lacks {', '.join(each.name for each in pending)}, and TIMER_AUTO_MIGRATE is off: "
            "run `timer-service migrate up`"
        )


def _shipped() -> list[Migration]:
    return read_migrations(bundled("migrations"))
