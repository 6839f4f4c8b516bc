"""Draws commands on few schedules with few definitions, so that many commands are about the same one."""

import operator
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from tests.harness.clock import NOW, iso
from tests.simulation.schedule_model import read_definition
from tests.simulation.schedule_slots import next_slot
from tests.simulation.service import SentCommand

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000


def _instant(wall: str) -> int:
    return int(datetime.fromisoformat(wall).replace(tzinfo=UTC).timestamp() * 1000)


BEGINNINGS = [NOW, _instant("2027-03-28T00:50"), _instant("2027-10-30T23:50")]
"""When histories begin. In Berlin, the clock goes forward at 01:00Z on 2027-03-28, and back on 2027-10-31."""

_EVERY = ["PT1M", "PT60S", 60_000, "PT20S", "PT20S", "PT1H30M", "P1D"]
_CRONS = [
    "* * * * *",
    "* * * * *",
    "*/20 * * * *",
    "0 * * * *",
    "30 2 * * *",
    "0,30 2 * * *",
    "*/30 2 * * *",
    "15 1-3 * * *",
]
_CRONS_NEAR = ["0,10,20,30,40,50 1 * * *", "5,25,45 1,2 * * *", "0,30 2 * * *", "15 1-3 * * *", "*/30 1,2 * * *"]
"""Expressions with many slots soon after the beginning, where the rules of a zone change."""
_CALENDARS = [(1, "days", -4), (2, "days", -4), (1, "weeks", -7), (2, "days", -3), (1, "days", 1)]
"""Calendar intervals. The anchor is so many days from the beginning."""
_POLICIES = ["last", "skip", "all"]


@st.composite
def _recurrences(draw: st.DrawFn, beginning: int) -> Mapping[str, Any]:
    fields: dict[str, Any] = {}
    if draw(st.booleans()):
        fields["every"] = draw(st.sampled_from(_EVERY))
    elif draw(st.integers(0, 2)) == 2:
        every, unit, days = draw(st.sampled_from(_CALENDARS))
        day, time = iso(beginning + days * 24 * HOUR)[:10], draw(st.sampled_from(["02:30", "02:30", "00:55"]))
        fields["calendar"] = {"every": every, "unit": unit, "anchor": f"{day}T{time}:00"}
        fields |= draw(st.sampled_from([{"zone": "Europe/Berlin"}, {"zone": "UTC"}, {}]))
    else:
        fields["cron"] = draw(st.sampled_from(_CRONS))
        fields |= draw(st.sampled_from([{"zone": "Europe/Berlin"}, {"zone": "UTC"}, {}]))
    if draw(st.integers(0, 3)) == 3:
        fields["startAt"] = iso(beginning + draw(st.sampled_from([-90 * SECOND, 30_500, HOUR])))
    if draw(st.integers(0, 3)) == 3:
        fields["endAt"] = iso(beginning + draw(st.sampled_from([-MINUTE, 61 * SECOND, 10 * MINUTE, 2 * HOUR])))
    return fields


_others = st.fixed_dictionaries(
    {},
    optional={
        "maxCount": st.sampled_from([1, 1, 2, 3]),
        "jitter": st.sampled_from(["PT30S", "PT2H", 0]),
        "catchUp": st.fixed_dictionaries(
            {},
            optional={
                "policy": st.sampled_from(_POLICIES),
                "lateBy": st.sampled_from(["PT1S", "PT1M", "PT10M", "P1D"]),
                "limit": st.sampled_from([1, 2, 5]),
            },
        ),
        "data": st.sampled_from([1, {"n": 2}, None]),
        "topic": st.sampled_from(["a", "b"]),
    },
)


@st.composite
def _definitions(draw: st.DrawFn, beginning: int) -> Mapping[str, Any]:
    fields = {**draw(_recurrences(beginning)), **draw(_others)}
    return fields if _fires(fields) else {name: value for name, value in fields.items() if name != "endAt"}


def _cron_in(zone: str) -> st.SearchStrategy[Mapping[str, Any]]:
    recurrences = st.fixed_dictionaries({"cron": st.sampled_from(_CRONS_NEAR), "zone": st.just(zone)})
    return st.builds(operator.or_, recurrences, _others)


def _fires(fields: Mapping[str, Any]) -> bool:
    """Return whether a slot exists. The service refuses other definitions."""
    recurrence = read_definition(fields).recurrence
    return next_slot(recurrence, (recurrence.start or 0) - 1) is not None


_KINDS = ["Put"] * 6 + ["Pause", "Pause", "Resume", "Resume", "Delete", "Delete", "Trigger", "Backfill", "Backfill"]

_BACKFILLED_FROM = [-HOUR, -10 * MINUTE, -90 * SECOND, 0, 30 * SECOND, 10 * MINUTE]


@st.composite
def schedule_commands(
    draw: st.DrawFn, most: int = 8, beginning: int = NOW, zone: str | None = None
) -> list[SentCommand]:
    """Draw commands in stream order. `most` limits their number. `zone`: that of all schedules, which have cron."""
    definitions = _definitions(beginning) if zone is None else _cron_in(zone)
    known = draw(st.lists(definitions, min_size=1, max_size=2))
    history: list[SentCommand] = []
    for _ in range(draw(st.sampled_from([1, 2, 3, most, most, most]))):
        kind = draw(st.sampled_from(_KINDS if history else ["Put", "Put", "Put", "Put", "Pause", "Delete"]))
        fields: dict[str, Any] = {"scheduleId": draw(st.sampled_from(["s1", "s1", "s1", "s2"]))}
        if kind == "Put":
            fields |= draw(st.sampled_from(known))
            if draw(st.integers(0, 3)) == 3:
                fields = {**fields, **draw(_others)}
        elif kind == "Trigger":
            fields |= draw(st.sampled_from([{}, {}, {"data": 3}]))
        elif kind == "Backfill":
            since = beginning + draw(st.sampled_from(_BACKFILLED_FROM))
            until = since + draw(st.sampled_from([20 * SECOND, 2 * MINUTE, 10 * MINUTE, 2 * HOUR]))
            fields |= {"from": iso(since), "to": iso(until), "limit": draw(st.sampled_from([1, 2, 5, 20]))}
        history.append(SentCommand(f"{kind}Schedule", "acme", fields))
    return history
