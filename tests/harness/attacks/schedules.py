"""Attacks with schedules: many, with costly expressions, with large data, or that start workflows."""

from collections.abc import Mapping
from typing import Any

from tests.harness.attacks.attack import LONG_AGO, Attack, address, body, commands, queries
from tests.harness.attacks.commands import LARGE
from tests.harness.raw_nats import RawMessage

_RARE = "0 0 29 2 0"
"""On a Sunday that is the 29 February. It fires in years that are far apart."""
_NEVER = {"cron": "* 2 * 3 0#2", "zone": "America/New_York", "startAt": "2030-01-01T00:00:00Z"}
"""All matches are in gaps of the zone. Finding that out takes longest."""
_START = "2019-12-01T00:00:00Z"
_ALL = {"policy": "all", "lateBy": "P1D", "limit": 1000}


def _put(schedule: str = "schedule-NUMBER", **fields: Any) -> tuple[str, Mapping[str, Any]]:
    return "PutSchedule", {"scheduleId": schedule, **fields}


def _trigger(**fields: Any) -> tuple[str, Mapping[str, Any]]:
    return "TriggerSchedule", {"scheduleId": "schedule", **fields}


def _backfill(**fields: Any) -> tuple[str, Mapping[str, Any]]:
    return "BackfillSchedule", {"scheduleId": "schedule", "from": _START, "to": LONG_AGO, **fields}


def _stored(**fields: Any) -> list[RawMessage]:
    kind, payload = _put("schedule", **fields)
    return [RawMessage(address(kind), body(kind, payload))]


SCHEDULES: Mapping[str, Attack] = {
    "schedules of each second": commands(_put(every="PT1S")),
    "schedules of each second with much data": commands(_put(every="PT1S", data=LARGE), size=20),
    "schedules that catch up": commands(_put(every="PT1S", startAt="1970-01-01T00:00:00Z", catchUp=_ALL)),
    "schedules with rare expressions": commands(_put(cron=_RARE)),
    "schedules that never fire": commands(_put(**_NEVER)),
    "schedules that start workflows": commands(_put(every="PT1S", start={"type": "order", "input": LARGE}), size=20),
    "schedules that start workflows of one key": commands(
        _put(every="PT1S", start={"type": "order", "concurrencyKey": "key"})
    ),
    "one schedule again and again": commands(_put("schedule", cron=_RARE), _put("schedule", every="PT1S"), _trigger()),
    "triggers": commands(_trigger(), prepare=_stored(every="P1D", data=LARGE)),
    "triggers with much data": commands(_trigger(data=LARGE), size=20, prepare=_stored(every="P1D")),
    "backfills": commands(_backfill(), prepare=_stored(every="PT1S", startAt=_START)),
    "backfills with much data": commands(_backfill(), prepare=_stored(every="PT1S", startAt=_START, data=LARGE)),
    "backfills that start workflows": commands(
        _backfill(), prepare=_stored(every="PT1S", startAt=_START, start={"type": "order", "input": LARGE})
    ),
}
SCHEDULE_QUERIES: Mapping[str, Attack] = {
    "previews of costly expressions": queries(
        ("preview-slots", {"cron": _RARE, "count": 100}), ("preview-slots", {**_NEVER, "count": 100})
    ),
    "slots of a schedule with much data": queries(
        ("get-schedule", {"scheduleId": "schedule", "upcoming": 100}), prepare=_stored(cron=_RARE, data=LARGE)
    ),
}
