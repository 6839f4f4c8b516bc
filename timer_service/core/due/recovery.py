"""Recovery after a crash."""

import logging

from timer_service.core.due.lease import Lease
from timer_service.core.ports.database import Database
from timer_service.core.ports.transactions import in_transaction

log = logging.getLogger(__name__)


async def take_over_claims(database: Database, lease: Lease, now: int) -> None:
    """End the leases of a dead process, if only one process at a time can use the database."""
    if not database.exclusive:
        return
    count = await in_transaction(database, lambda tx: lease.void(tx, now))
    if count:
        log.info("ended the leases of a dead process", extra={"table": lease.table.name, "count": count})
