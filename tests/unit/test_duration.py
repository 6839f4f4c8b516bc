import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

from timer_service.core.duration import _PATTERN, format_duration, parse_duration

LONGEST_MS = timedelta(days=366) // timedelta(milliseconds=1)


@given(st.integers(0, LONGEST_MS))
def test_round_trip(milliseconds: int) -> None:
    """Every duration is read back from its own text."""
    text = format_duration(milliseconds)
    assert parse_duration(text) == milliseconds
    assert re.search(_PATTERN, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PT0S", timedelta()),
        ("PT0.001S", timedelta(milliseconds=1)),
        ("PT0.25S", timedelta(milliseconds=250)),
        ("PT90S", timedelta(seconds=90)),
        ("PT1H30M", timedelta(minutes=90)),
        ("P1D", timedelta(hours=24)),
        ("P2W", timedelta(weeks=2)),
        ("P1W2DT3H4M5.006S", timedelta(weeks=1, days=2, hours=3, minutes=4, seconds=5, milliseconds=6)),
        ("P366D", timedelta(days=366)),
        ("PT31622400.000S", timedelta(days=366)),
    ],
)
def test_units(text: str, expected: timedelta) -> None:
    """A duration is the sum of its units. A day has 24 hours."""
    assert parse_duration(text) == expected // timedelta(milliseconds=1)
    assert re.search(_PATTERN, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "P",
        "PT",
        "P1DT",
        "90S",
        "P90S",
        "PT1D",
        "PT1M1H",
        "P1M",
        "P1Y",
        "-PT1S",
        "PT-1S",
        "+PT1S",
        "PT1.S",
        "PT.5S",
        "PT0.0001S",
        "PT1.5H",
        "PT1,5S",
        "pt1s",
        " PT1S",
        "PT1S\n",
        "PT\u0661S",
        pytest.param("PT" + "9" * 5000 + "S", id="5000 digits"),
        90,
        None,
        ["PT1S"],
    ],
)
def test_other_text(text: object) -> None:
    """Other texts and other types are refused by the parser, and texts by the pattern of the schema too."""
    with pytest.raises(PydanticCustomError, match="must be an ISO 8601 duration"):
        parse_duration(text)
    if isinstance(text, str):
        assert re.search(_PATTERN.replace("$", r"\Z"), text) is None


@pytest.mark.parametrize("text", ["P366DT0.001S", "P53W", "PT999999999H", "P999999999W"])
def test_too_long(text: str) -> None:
    """A duration over 366 days is refused."""
    with pytest.raises(PydanticCustomError, match="at most 366 days"):
        parse_duration(text)
