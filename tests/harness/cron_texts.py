"""Random cron expressions for Hypothesis."""

import re

from hypothesis import strategies as st

from tests.harness.reference_slots import MONTHS, WEEKDAYS


def _terms(first: int, last: int, *special: str) -> st.SearchStrategy[str]:
    value = st.integers(first, last)
    span = st.tuples(value, value).map(lambda ends: f"{min(ends)}-{max(ends)}")
    step = st.integers(1, last)
    terms = [
        value.map(str),
        span,
        st.builds("{}/{}".format, value, step),
        st.builds("{}/{}".format, span, step),
        st.builds("*/{}".format, step),
    ]
    return st.one_of(*terms, st.sampled_from(special)) if special else st.one_of(*terms)


def _fields(first: int, last: int, *special: str) -> st.SearchStrategy[str]:
    return st.just("*") | st.lists(_terms(first, last, *special), min_size=1, max_size=3).map(",".join)


_WITHOUT_SECOND = (
    _fields(0, 59),
    _fields(0, 23),
    _fields(1, 31, "L", "LW", "L-1", "L-29", "LW-1", "LW-19", "1W", "15W", "30W", "31W"),
    _fields(1, 12, *MONTHS, "JAN-MAR"),
    _fields(0, 7, *WEEKDAYS, "MON-FRI", "MON#2", "5L", "0L", "7#1", "3#5").filter(
        lambda field: not re.search(r"(^|,)\d/", field)
    ),
)

cron_texts = st.tuples(*_WITHOUT_SECOND).map(" ".join) | st.tuples(_fields(0, 59), *_WITHOUT_SECOND).map(" ".join)
"""Expressions with five or six fields. Some of them match no date."""
