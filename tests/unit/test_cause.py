"""The cause of an event: from a command to a row and back."""

from timer_service.core.events.cause import Cause, cause_columns, cause_of, read_cause
from timer_service.core.values.message import Command, Position, TenantPayload, Trace

TRACE = Trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1")


def test_cause_is_read_from_the_columns_that_store_it() -> None:
    """A cause that is written to a row is read back unchanged, also if it is empty."""
    command = Command("c-1", TenantPayload(tenant_id="acme"), Position(1, 2), "corr-1", TRACE, None)

    for cause in (cause_of(command), Cause()):
        assert read_cause(cause_columns(cause)) == cause
    assert cause_of(command) == Cause("c-1", "corr-1", TRACE)
