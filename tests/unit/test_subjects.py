"""The subjects of addresses, and the addresses of subjects."""

import pytest

from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.values.message import Address, Kind


@pytest.mark.parametrize("prefix", ["timer", "acme.timer"])
def test_subject_of_an_address(prefix: str) -> None:
    """The address of a subject is the address that it was made of, with any prefix."""
    address = Address(Kind.COMMAND, "acme", "schedule-timer")
    subject = Subjects(prefix).subject(address)
    assert subject == f"{prefix}.cmd.v1.acme.schedule-timer"
    assert Subjects(prefix).address(Kind.COMMAND, subject) == address


@pytest.mark.parametrize(("subject", "tenant", "message"), [("legacy.tick", "legacy", "tick"), ("tick", "", "tick")])
def test_subject_with_few_tokens(subject: str, tenant: str, message: str) -> None:
    """A subject that no command has still has an address, so that the message becomes a dead letter."""
    assert Subjects("timer").address(Kind.COMMAND, subject) == Address(Kind.COMMAND, tenant, message)
