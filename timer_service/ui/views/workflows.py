"""The workflows and the workers of a tenant, and one workflow with its steps, sleeps and waits."""

import re
from collections.abc import Mapping
from typing import Any

from timer_service.core.service.workflow_start import NAME_PATTERN
from timer_service.ui.links import command
from timer_service.ui.pages import Content
from timer_service.ui.parameters import BadParameterError
from timer_service.ui.tenants import Rows
from timer_service.ui.views.lists import StatusList, TenantChoice, read_page
from timer_service.ui.views.view import Asked, View, item_view, main_view
from timer_service.workflows.messages import ENDED, WorkflowStatus
from timer_service.workflows.queries import QUERIES

_ROUTES = {route.name: route for route in QUERIES}
CHOICE = TenantChoice(
    things="workflows",
    rows=Rows("workflows"),
    hint="docs/workflows-tutorial.md shows the first one in five minutes. Then start it:",
    example=command("workflows", "start", "acme", "order", "order-1"),
)
_LIST = StatusList(CHOICE, _ROUTES["list-workflows"], WorkflowStatus)


async def _show_list(asked: Asked) -> Content:
    workflow_type = asked.parameters.text("workflow_type")
    if workflow_type is not None and not re.fullmatch(NAME_PATTERN, workflow_type):
        raise BadParameterError("“workflow_type” must have 1 to 100 characters, and no colon or control character.")
    return await _LIST.show(asked, "workflows.html", workflow_type=workflow_type)


async def _show(asked: Asked) -> Content:
    tenant, workflow_id = asked.parameters.key()
    found = await read_page(asked, _ROUTES["get-workflow"], tenant, workflow_id=workflow_id)
    values = {
        **found,
        "texts": {name: found[name] for name in ("input", "result", "failure") if name in found},
        "is_open": found["workflow"]["status"] not in ENDED,
        "commands": _commands(found["workflow"]),
    }
    return Content("workflow.html", values)


async def _show_workers(asked: Asked) -> Content:
    tenant = asked.parameters.needed_tenant("the workflows of a tenant")
    page = await read_page(asked, _ROUTES["list-workers"], tenant)
    return Content("workers.html", {**page, "tenant": tenant})


def _commands(workflow: Mapping[str, Any]) -> dict[str, str]:
    """Return the commands that make sense for a workflow, by what they do."""
    key = (workflow["tenantId"], workflow["workflowId"])
    if workflow["status"] == WorkflowStatus.FAILED:
        return {"Continue it: the step that failed runs again": command("workflows", "retry", *key)}
    return {} if workflow["status"] in ENDED else {"Cancel it": command("workflows", "cancel", *key)}


WORKFLOWS = main_view("workflows", "Workflows", _show_list, "tenant", "status", "workflow_type", "cursor", "after")
WORKFLOW = item_view("workflow", WORKFLOWS, _show, "cursor")
WORKERS = View("workers", None, WORKFLOWS.path, frozenset({"tenant", "cursor"}), _show_workers)
