"""What JetStream says about a stored message."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timer_service.adapters.nats.stored import Receipt, nanoseconds, read_receipt, reply_for

SECOND = 1_000_000_000


@given(st.integers(0, 4_000_000_000), st.integers(0, SECOND - 1), st.integers(0, 9))
def test_every_instant(seconds: int, fraction: int, zeros: int) -> None:
    """An instant is read to the nanosecond. The server leaves out the zeros at its end."""
    fraction -= fraction % 10**zeros
    digits = f".{fraction:09}".rstrip("0").rstrip(".")
    text = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{digits}Z"
    assert nanoseconds(text) == seconds * SECOND + fraction


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:01Z", SECOND),
        ("1970-01-01T00:00:01.5Z", 1_500_000_000),
        ("1970-01-01T00:00:01.00000001Z", 1_000_000_010),
        ("1970-01-01T00:00:01.123456789Z", 1_123_456_789),
        ("1970-01-01T02:00:01.25+02:00", 1_250_000_000),
    ],
)
def test_instants(text: str, expected: int) -> None:
    """A fraction may have any number of digits, and the instant may have an offset."""
    assert nanoseconds(text) == expected


@pytest.mark.parametrize("account", ["", "hub.ACCOUNT."], ids=["", "with a domain"])
def test_reply_subjects(account: str) -> None:
    """The reply subject of another command differs in the sequence and the delivery, also from a server with a domain.

    It is the first delivery of that command.
    """
    first = f"$JS.ACK.{account}TIMER_CMD.timer-service.3.7.20.1700000000000000000.5"
    end = ".random" if account else ""  # the long form ends with a random token
    assert read_receipt(first + end) == Receipt(3, 7, 20, 1_700_000_000_000_000_000, 5)
    other = f"$JS.ACK.{account}TIMER_CMD.timer-service.1.8.21.1700000000000000000.5"
    assert reply_for(first + end, 8, 21) == other + end
