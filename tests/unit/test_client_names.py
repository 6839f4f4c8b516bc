"""The literal types of the client have the names of the contracts."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from timer_service.client import names
from timer_service.client.models import Outcome

SCHEMAS = Path(__file__).parents[2] / "contracts" / "schemas"
TYPES = [
    ("command-outcome", "Outcome", names.OutcomeName),
    ("list-timers", "State", names.TimerState),
    ("list-signals", "Status", names.SignalStatus),
    ("list-firings-answer", "FiringStatus", names.FiringStatus),
    ("list-runs", "RunStatus", names.RunStatus),
    ("get-run-answer", "JobStatus", names.JobStatus),
    ("list-schedules", "ShownStatus", names.ScheduleStatus),
    ("get-schedule-answer", "EndReason", names.EndReason),
    ("get-schedule-answer", "SkipReason", names.SkipReason),
    ("get-schedule-answer", "Policy", names.CatchUpPolicy),
    ("list-workflows", "WorkflowStatus", names.WorkflowStatus),
    ("get-workflow-answer", "EffectKind", names.EffectKind),
    ("get-workflow-answer", "EffectStatus", names.EffectStatus),
]


def values(literal: Any) -> set[str]:
    """Return the names of a `Literal`, or of a union of them."""
    return {name for each in get_args(literal) for name in (values(each) or {each})}


@pytest.mark.parametrize(("schema", "enum", "literal"), TYPES)
def test_names(schema: str, enum: str, literal: Any) -> None:
    """Each type has exactly the names that a message can have. A worker cannot report `pending`."""
    definitions = json.loads((SCHEMAS / f"{schema}.v1.json").read_text())["$defs"]
    assert values(literal) - {"stored"} == set(definitions[enum]["enum"])  # `stored` comes from an outbox


def test_names_of_a_newer_service() -> None:
    """A name that the client does not know is returned as it is."""
    assert Outcome.read({"commandId": "1", "outcome": "postponed"}).name == "postponed"  # type: ignore[comparison-overlap]
