"""Commands in the transaction of the user: rows of a table in the user's database, sent by a relay (docs/outbox.md)."""

from timer_service.client.outbox.outbox import Outbox, run_sync
from timer_service.client.outbox.relay import OutboxRelay
from timer_service.client.outbox.store import RefusedCommand

__all__ = ["Outbox", "OutboxRelay", "RefusedCommand", "run_sync"]
