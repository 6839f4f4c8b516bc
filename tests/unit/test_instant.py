from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

from timer_service.core.values.instant import format_instant, parse_instant

LATEST = 253_402_300_799_999
AT = int(datetime(2026, 11, 21, 9, 0, 0, tzinfo=UTC).timestamp() * 1000)

offsets = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.integers(0, LATEST))
def test_round_trip(at: int) -> None:
    """Every instant is read back from its own text."""
    assert parse_instant(format_instant(at)) == at


@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30)), offsets)  # noqa: DTZ001 - the offset is added below
def test_agrees_with_datetime(naive: datetime, offset: timezone) -> None:
    """With any offset and fraction, the result equals that of datetime, rounded up."""
    microseconds = (naive.replace(tzinfo=offset) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert parse_instant(naive.replace(tzinfo=offset).isoformat()) == -(-microseconds // 1000)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-11-21t09:00:00z", AT),
        ("2026-11-21T09:00:00-00:00", AT),
        ("2026-11-21T09:00:00.1Z", AT + 100),
        ("2026-11-21T09:00:00.1230000Z", AT + 123),
        ("2026-11-21T09:00:00.1230001Z", AT + 124),
        ("2026-11-21T09:00:00.0000000000000000000001Z", AT + 1),
        ("2026-11-21T09:00:00.9999Z", AT + 1000),
        pytest.param(f"2026-11-21T09:00:00.{'1' * 5000}Z", AT + 112, id="5000 ones"),
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T05:00:00+05:00", 0),
        ("1969-12-31T19:00:00-05:00", 0),
        ("9999-12-31T23:59:59.999Z", LATEST),
        ("9999-12-31T22:59:59.999-01:00", LATEST),
    ],
)
def test_instants(text: str, at: int) -> None:
    """An instant is rounded up to the millisecond. The instant decides whether it is in range, not the year."""
    assert parse_instant(text) == at


OUT_OF_RANGE = (
    *("0000-01-01T00:00:00Z", "0001-01-01T00:00:00+05:00", "1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00+00:01"),
    *("9999-12-31T23:59:59.9991Z", "9999-12-31T23:59:59-00:01"),
)
JUNK = (
    *(None, True, AT, 1.5, b"2026-11-21T09:00:00Z", "", "now", "2026-11-21", "2026-11-21T09:00Z"),
    *("2026-11-21T09:00:00", "2026-11-21T09:00:00.Z", "2026-11-21T09:00:00,5Z", "2026-11-21T09:00:00+0100"),
    *("2026-11-21T09:00:00+24:00", "2026-11-21T09:00:00+05:99", "2026-11-21 09:00:00Z", "2026-11-21T24:00:00Z"),
    *("2026-11-21T09:00:60Z", "2026-02-29T09:00:00Z", "20261121T090000Z", "2026-W47-6T09:00:00Z"),
    *("12026-11-21T09:00:00Z", " 2026-11-21T09:00:00Z", "2026-11-21T09:00:00Z\n", "٢٠٢٦-11-21T09:00:00Z"),
)


@pytest.mark.parametrize(
    ("value", "error"),
    [*((each, "due_at_out_of_range") for each in OUT_OF_RANGE), *((each, "instant") for each in JUNK)],
)
def test_refused(value: object, error: str) -> None:
    """A value that is not an instant with seconds and an offset is refused, and an instant out of range apart."""
    with pytest.raises(PydanticCustomError) as caught:
        parse_instant(value)
    assert caught.value.type == error


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        *((each, "a number may count seconds or milliseconds") for each in (AT, AT / 1000, "1795251600", "-1.5")),
        *((each, "without an offset, it may be in any time zone") for each in ("2026-11-21", "2026-11-21 09:00")),
        *((each, "without an offset, it may be in any time zone") for each in ("2026-11-21T09:00:00.5",)),
        *((each, r"or 2026-11-21T10:00:00\+01:00$") for each in (True, None, "tomorrow", "2026-11-21T09:00Z")),
    ],
)
def test_forms_of_other_programs(value: object, reason: str) -> None:
    """The error of a number, or of a time without an offset, says what is unknown."""
    with pytest.raises(PydanticCustomError, match=f"^must be an ISO 8601 instant with an offset, such as .*{reason}"):
        parse_instant(value)


@given(st.text() | st.from_regex(r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)\Z"))
def test_any_text(text: str) -> None:
    """Any text is either an instant in range or refused with one of the two error types."""
    try:
        at = parse_instant(text)
    except PydanticCustomError as error:
        assert error.type in {"instant", "due_at_out_of_range"}  # noqa: PT017 - both types are correct
    else:
        assert 0 <= at <= LATEST
