"""What `timer-service workflows` prints."""

from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import typer

from timer_service.cli import workflows
from timer_service.cli.output.workflows import workflow_lines
from timer_service.client import Outcome, Workflow, WorkflowDetail, WorkflowEffect, WorkflowEndedError
from timer_service.client.workflow_models import WorkflowError

PAST = datetime(2020, 1, 1, tzinfo=UTC)
RETRIED = [
    WorkflowEffect(key=f"step-{failures}", kind="step", status="open", failures=failures) for failures in range(3)
]


def a_workflow(status: str, **fields: Any) -> Workflow:
    known = {"tenant": "acme", "type": "order", "queue": "default", "created_at": PAST, "attempt": 0, "retries": 0}
    return Workflow(name="order-1", status=status, **{**known, "effects": 0, "messages": 0, **fields})


@pytest.mark.parametrize(
    ("outcome", "status", "text"),
    [
        ("skipped_busy", "cancelled", "another open workflow has its concurrency key; start it again under another id"),
        ("unchanged", "cancelled", "it was started before, with the same type, queue and input"),
    ],
)
async def test_outcomes_of_start(outcome: str, status: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A start that starts nothing says why, and what to do."""
    end = Outcome(command_id="1", name=outcome, workflow=a_workflow(status))
    client: Any = SimpleNamespace(workflows=SimpleNamespace(start=AsyncMock(return_value=end)))
    with suppress(typer.Exit):
        await workflows.start(client, "acme", "order-1", "order")
    assert f"{outcome}: acme/order-1 ({status}): {text}\n" in "".join(capsys.readouterr())


async def test_end_of_a_workflow_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """The error that `start --wait` prints, which the code of a tenant raised, does not act on the terminal."""
    started = Outcome(command_id="1", name="started", workflow=a_workflow("waiting"))
    ended = WorkflowEndedError(a_workflow("failed"), WorkflowError(type="E", message="\x1b[2J\n"))
    calls = SimpleNamespace(start=AsyncMock(return_value=started), result=AsyncMock(side_effect=ended))
    client: Any = SimpleNamespace(workflows=calls)
    with pytest.raises(typer.Exit):
        await workflows.start(client, "acme", "order\u202e", "order", wait=True)
    assert capsys.readouterr().err.splitlines() == [
        r"started: acme/order\u202e. Waiting for its end.",
        r"the workflow acme/order-1 is failed: E: \x1b[2J\n",
    ]


@pytest.mark.parametrize(("messages", "text"), [(1, "1 message"), (2, "2 messages")])
def test_counts(messages: int, text: str) -> None:
    """One attempt and one message are singular."""
    detail = WorkflowDetail(workflow=a_workflow("running", messages=messages), has_workers=True, effects=RETRIED)
    lines = [line.split("  ") for line in workflow_lines(detail, PAST, None)]
    assert ["unread", text] in [[each.strip() for each in line if each] for line in lines]
    assert [line[-1].strip() for line in lines[-2:]] == ["1 attempt failed", "2 attempts failed"]
