"""Which commands of an outbox may be on their way to the broker at the same time. Pure."""

import json
from collections.abc import Iterator, Sequence

from timer_service.client.outbox.store import OutboxRow

_MOST = 500


def windows(rows: Sequence[OutboxRow]) -> Iterator[list[OutboxRow]]:
    """Split rows into parts that are sent one after the other, in order.

    Of the commands of a part, the broker may store a later one and not an earlier one. So no two of them are about the
    same thing of a tenant: a cancel never overtakes the schedule of its timer.
    """
    window: list[OutboxRow] = []
    taken: set[tuple[str, str]] = set()
    for row in rows:
        ids = {(row.tenant, found) for found in ids_of(row.body)}
        if window and (not ids or not taken or taken & ids or len(window) == _MOST):
            yield window
            window, taken = [], set()
        window.append(row)
        taken |= ids
    if window:
        yield window


def ids_of(body: str) -> set[str]:
    """Return the ids in the payload of a command; none if it has no id, as CancelTimers, or if it cannot be read."""
    try:
        payload = dict(json.loads(body)["payload"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return set()  # not a row of `Outbox`: the service rejects it
    return {value for name, value in payload.items() if name.endswith("Id") and isinstance(value, str)}
