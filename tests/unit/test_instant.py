from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

from timer_service.core.values.instant import format_instant, parse_instant

LATEST = 253_402_300_799_999
SECOND = datetime(2026, 11, 21, 9, 0, 0, tzinfo=UTC)
AT = int(SECOND.timestamp() * 1000)

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
    ("fraction", "milliseconds"),
    [
        ("", 0),
        (".0", 0),
        (".000", 0),
        (".000000000", 0),
        (".1", 100),
        (".12", 120),
        (".123", 123),
        (".1230000", 123),
        (".1230001", 124),
        (".000000001", 1),
        (".0000000000000000000001", 1),
        (".9999", 1000),
        pytest.param("." + "1" * 5000, 112, id="5000 ones"),
        pytest.param("." + "0" * 5000, 0, id="5000 zeros"),
    ],
)
def test_finer_fraction_rounds_up(fraction: str, milliseconds: int) -> None:
    """A due time with a fraction of a millisecond is never stored earlier than requested."""
    assert parse_instant(f"2026-11-21T09:00:00{fraction}Z") == AT + milliseconds


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-21T09:00:00Z",
        "2026-11-21t09:00:00z",
        "2026-11-21T09:00:00+00:00",
        "2026-11-21T09:00:00-00:00",
        "2026-11-21T10:30:00+01:30",
        "2026-11-20T23:00:00-10:00",
        "2026-11-22T08:59:00+23:59",
    ],
)
def test_offsets_name_the_same_instant(text: str) -> None:
    """The same instant can be written with any offset, and in lower case."""
    assert parse_instant(text) == AT


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T05:00:00+05:00", 0),
        ("1969-12-31T19:00:00-05:00", 0),
        ("9999-12-31T23:59:59.999Z", LATEST),
        ("9999-12-31T22:59:59.999-01:00", LATEST),
    ],
)
def test_first_and_last(text: str, at: int) -> None:
    """The first and last instant are accepted. The instant decides, not the year in the text."""
    assert parse_instant(text) == at


@pytest.mark.parametrize(
    "text",
    [
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00Z",
        "0001-01-01T00:00:00+05:00",
        "1969-12-31T23:59:59.999Z",
        "1970-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59.9991Z",
        "9999-12-31T23:59:59-00:01",
    ],
)
def test_out_of_range(text: str) -> None:
    """An instant before 1970 or after 9999 has its own error type."""
    with pytest.raises(PydanticCustomError) as caught:
        parse_instant(text)
    assert caught.value.type == "due_at_out_of_range"


@pytest.mark.parametrize(
    "junk",
    [
        None,
        True,
        1_795_251_600_000,
        1.5,
        b"2026-11-21T09:00:00Z",
        "",
        "now",
        "2026-11-21",
        "2026-11-21T09:00Z",
        "2026-11-21T09:00:00",
        "2026-11-21T09:00:00.Z",
        "2026-11-21T09:00:00,5Z",
        "2026-11-21T09:00:00+0100",
        "2026-11-21T09:00:00+01",
        "2026-11-21T09:00:00+24:00",
        "2026-11-21T09:00:00+05:99",
        "2026-11-21 09:00:00Z",
        "2026-11-21T24:00:00Z",
        "2026-11-21T09:00:60Z",
        "2026-13-01T09:00:00Z",
        "2026-02-29T09:00:00Z",
        "20261121T090000Z",
        "2026-W47-6T09:00:00Z",
        "12026-11-21T09:00:00Z",
        "-2026-11-21T09:00:00Z",
        " 2026-11-21T09:00:00Z",
        "2026-11-21T09:00:00Z\n",
        "٢٠٢٦-11-21T09:00:00Z",
    ],
)
def test_junk(junk: object) -> None:
    """A value that is not an instant with seconds and an offset is rejected."""
    with pytest.raises(PydanticCustomError) as caught:
        parse_instant(junk)
    assert caught.value.type == "instant"


@pytest.mark.slow
@given(st.text() | st.from_regex(r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)\Z"))
def test_any_text(text: str) -> None:
    """Any text is either an instant in range or rejected with one of the two error types."""
    try:
        at = parse_instant(text)
    except PydanticCustomError as error:
        assert error.type in {"instant", "due_at_out_of_range"}  # noqa: PT017 - both types are correct
    else:
        assert 0 <= at <= LATEST
