"""What a tenant may have of workflows, and what a command adds to it."""

from timer_service.core.limits.quotas import Amounts, Usage
from timer_service.core.ports.sql import load_sql
from timer_service.workflows.workflow import Workflow

_SQL = load_sql("timer_service.workflows", "usage.sql")
_LARGE = 1000
"""A workflow counts with its data if it has more bytes of it."""
_FEW = 10
"""Each further effect counts too, also without a result: no stream limits how many effects workers report."""
_BYTES_PER_EFFECT = 1000
"""About what a row of an effect and its indexes take, with a long name."""

OPEN = Usage("open_workflows", _SQL["count_open"])
STORED = Usage("workflow_data", _SQL["sum_stored"], grows_alone=True)
"""Workers add results to it, which are not refused."""
USAGES = (OPEN, STORED)


def growth(before: Workflow | None, after: Workflow) -> Amounts:
    """Return how much more a tenant has after a command on one of its workflows than before.

    A workflow that opens counts with a byte at least: it may have results, so it needs some room for them.
    """
    opened, stored = _is_open(after) - _is_open(before), _stored(after) - _stored(before)
    return {OPEN: opened, STORED: max(stored, 1) if opened > 0 else stored}


def _is_open(workflow: Workflow | None) -> bool:
    return workflow is not None and workflow.is_open


def _stored(workflow: Workflow | None) -> int:
    if workflow is None:
        return 0
    data = workflow.input_bytes + workflow.effect_bytes + workflow.message_bytes
    further = max(workflow.effects - _FEW, 0)
    return data + further * _BYTES_PER_EFFECT if data > _LARGE or further else 0
