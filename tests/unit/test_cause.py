"""The cause of an event, from the command that led to it to a row and back."""

from timer_service.core.cause import Cause, cause_columns, cause_of, read_cause
from timer_service.core.message import Command, Position, TenantPayload, Trace

TRACE = Trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1")


def test_a_cause_comes_back_from_the_columns_that_keep_it() -> None:
    """What a row keeps of a command is what the event tells: all of it, or nothing where the command had nothing."""
    command = Command("c-1", TenantPayload(tenant_id="acme"), Position(1, 2), "corr-1", TRACE, None)

    for cause in (cause_of(command), Cause()):
        assert read_cause(cause_columns(cause)) == cause
    assert cause_of(command) == Cause("c-1", "corr-1", TRACE)
