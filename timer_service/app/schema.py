"""The schema of the configured database, and its migrations."""

import logging
import os
from pathlib import Path

from timer_service.adapters.migrations import Migration, migrate, pending_migrations, read_migrations
from timer_service.app.storage import open_database
from timer_service.config import Config
from timer_service.core.limits.audit import OPERATOR_ACTION
from timer_service.core.ports.database import Database
from timer_service.core.values.errors import StartError

log = logging.getLogger(__name__)
_PACKAGE = Path(__file__).parents[1]
_IN_WHEEL = _PACKAGE / "migrations"
_FOLDER = _IN_WHEEL if _IN_WHEEL.is_dir() else _PACKAGE.parent / "migrations"


def migrations() -> list[Migration]:
    """Return the migrations of this version."""
    return read_migrations(_FOLDER)


async def apply_migrations(config: Config) -> list[Migration]:
    """Migrate the configured database to head; return the applied migrations."""
    async with open_database(config) as database:
        return await _migrate(database)


async def unapplied_migrations(config: Config) -> list[Migration]:
    """Return the migrations that the configured database lacks."""
    async with open_database(config) as database:
        return await pending_migrations(database, migrations())


async def bring_to_head(database: Database, *, auto: bool) -> None:
    """Apply the missing migrations if `auto`. Otherwise raise `StartError` if a migration is missing."""
    if auto:
        await _migrate(database)
    elif missing := await pending_migrations(database, migrations()):
        raise StartError(
            f"the schema lacks {', '.join(each.name for each in missing)}, and TIMER_AUTO_MIGRATE is off: "
            "run `timer-service migrate up`"
        )


async def _migrate(database: Database) -> list[Migration]:
    """Apply the missing migrations, write one line to the audit log, and return them."""
    applied = await migrate(database, migrations())
    if applied:
        names = [migration.name for migration in applied]
        log.info(OPERATOR_ACTION, extra={"type": "migration", "migrations": names, "uid": os.geteuid()})
    return applied
