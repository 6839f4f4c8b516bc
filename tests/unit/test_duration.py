"""Durations on the wire."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from timer_service.core.values.duration import (
    DAY,
    HOUR,
    LONGEST_MS,
    MINUTE,
    SECOND,
    WEEK,
    format_duration,
    parse_duration,
)
from timer_service.core.values.duration_field import Duration

DURATION: TypeAdapter[int] = TypeAdapter(Duration)
PATTERN = DURATION.json_schema()["anyOf"][0]["pattern"]


def fits_schema(text: str) -> bool:
    return re.search(PATTERN.replace("$", r"\Z"), text) is not None


@given(st.integers(0, LONGEST_MS))
@example(0)
@example(LONGEST_MS)
def test_round_trip(milliseconds: int) -> None:
    """Every duration is read back from its own text, also from that of a field, whose limits are included."""
    text = format_duration(milliseconds)
    assert DURATION.validate_python(text) == milliseconds
    assert (parse_duration(text), fits_schema(text)) == (milliseconds, True)


@pytest.mark.parametrize(
    ("value", "duration"),
    [
        ("PT1H30M", HOUR + 30 * MINUTE),
        ("P1W", WEEK),
        ("P1W2DT3H4M5S", WEEK + 2 * DAY + 3 * HOUR + 4 * MINUTE + 5 * SECOND),
        ("PT90M", 90 * MINUTE),
        ("PT0S", 0),
        ("PT1.25S", 1250),
        ("PT1.001S", 1001),
        ("PT000000000001S", SECOND),
        (0, 0),
        (1500, 1500),
    ],
)
def test_durations(value: object, duration: int) -> None:
    """A duration is an ISO 8601 duration, or whole milliseconds. A day has 24 hours."""
    assert parse_duration(value) == duration
    assert not isinstance(value, str) or fits_schema(value)


@pytest.mark.parametrize(
    "value",
    [
        *("", "P", "PT", "P1DT", "1H", "T1H", "PT1", "P1H", "PT1D", "P1M", "P1Y", "-PT1S", "PT-1S", "pt1s", " PT1S"),
        *("PT1S\n", "PT.5S", "PT1.5M", "PT0.0001S", "PT1,5S", "PT1S1M", "PT1H1H", "PT\N{ARABIC-INDIC DIGIT ONE}S"),
        pytest.param("PT" + "9" * 5000 + "S", id="5000 digits"),
        *(None, True, 1.5, b"PT1S", ["PT1S"]),
    ],
)
def test_not_durations(value: object) -> None:
    """Anything else is refused with an example. The pattern of the schema refuses the texts too."""
    with pytest.raises(ValueError, match="such as PT1H30M or P1D, or a whole number of milliseconds"):
        parse_duration(value)
    assert not isinstance(value, str) or not fits_schema(value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        *((value, "must be from PT0S to P366D") for value in ("P366DT0.001S", "PT999999999H", LONGEST_MS + 1)),
        ("P1M", "months and years have no fixed length"),
        (-1, "must not be negative"),
    ],
)
def test_out_of_range(value: object, reason: str) -> None:
    """A field refuses a negative duration, and one over 366 days."""
    with pytest.raises(ValidationError, match=reason):
        DURATION.validate_python(value)
