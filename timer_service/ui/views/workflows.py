"""The workflows and the workers of a tenant, and one workflow with its steps, sleeps and waits."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from timer_service.core.service.workflow_start import NAME_PATTERN
from timer_service.core.values.paging import write_cursor
from timer_service.ui import tenants
from timer_service.ui.failures import KINDS
from timer_service.ui.formats import milliseconds
from timer_service.ui.links import command
from timer_service.ui.pages import Content, Redirect
from timer_service.ui.parameters import BadParameterError
from timer_service.ui.reads import PAGE_ROWS
from timer_service.ui.tenants import Rows
from timer_service.ui.views.lists import StatusList, TenantChoice, choose_tenant, read_page
from timer_service.ui.views.view import Asked, View, item_view, main_view
from timer_service.workflows.effect_store import Cursor, find_waits
from timer_service.workflows.messages import ENDED, WorkflowStatus
from timer_service.workflows.queries import QUERIES
from timer_service.workflows.workflow import Key

_ROUTES = {route.name: route for route in QUERIES}
CHOICE = TenantChoice(
    things="workflows",
    rows=Rows("workflows"),
    hint="docs/tutorial.md shows the first one. Then start it:",
    example=command("workflows", "start", "acme", "order-1", "order"),
    order="Open workflows first, and then those that have ended, each the newest first.",
)
WORKERS_CHOICE = TenantChoice(
    things="workers",
    rows=Rows("workflow_workers"),
    hint="Start one with your functions:",
    example="timer-service worker --help",
)
_MOST_MESSAGES = 3
_ATTENTION = [kind for kind in KINDS if kind.name in {"workflows", "blocked"}]
_LIST = StatusList(CHOICE, _ROUTES["list-workflows"], WorkflowStatus)


async def _show_list(asked: Asked) -> Content | Redirect:
    workflow_type = asked.parameters.text("workflow_type")
    if workflow_type is not None and not re.fullmatch(NAME_PATTERN, workflow_type):
        raise BadParameterError("“workflow_type” must have 1 to 100 characters, and no colon or control character.")
    content = await _LIST.show(asked, "workflows.html", workflow_type=workflow_type)
    if isinstance(content, Redirect) or "items" not in content.values:
        return content
    reader, tenant = asked.reads.reader, content.values["tenant"]
    # The query says for which messages a workflow waits, unless a sleep or the time of a wait ends earlier.
    waiting = {
        Key(tenant, each["workflowId"]): each
        for each in content.values["items"]
        if each["status"] == WorkflowStatus.WAITING and milliseconds(each["dueAt"]) > asked.now
    }
    for key, names in (await find_waits(reader, waiting, _MOST_MESSAGES)).items():
        waiting[key]["waitsFor"] = names
    counts = [(kind, (await tenants.count(reader, kind.rows, [tenant]))[tenant]) for kind in _ATTENTION]
    attention = [(kind.title, kind.list(tenant), count) for kind, count in counts if count]
    return content._replace(values={**content.values, "attention": attention})


async def _show(asked: Asked) -> Content:
    tenant, workflow_id = asked.parameters.key()
    found = await read_page(asked, _ROUTES["get-workflow"], tenant, workflow_id=workflow_id)
    key = Key(tenant, workflow_id)
    waits = await find_waits(asked.reads.reader, [key], _MOST_MESSAGES)
    values = {
        **found,
        "texts": {name: found[name] for name in ("input", "result", "failure") if name in found},
        "is_open": found["workflow"]["status"] not in ENDED,
        "commands": _commands(found["workflow"], waits.get(key, ())),
        "waits_for": waits.get(key),
        "last": _last_steps(found["workflow"]["effects"]),
    }
    return Content("workflow.html", values)


def _last_steps(effects: int) -> str:
    """Return the cursor of the last page of effects. They are numbered; those that the function has not got follow."""
    return write_cursor(Cursor(max(effects - PAGE_ROWS, 0)))


async def _show_workers(asked: Asked) -> Content | Redirect:
    tenant = asked.parameters.tenant()
    if tenant is None:
        return await choose_tenant(asked, WORKERS_CHOICE)
    page = await read_page(asked, _ROUTES["list-workers"], tenant)
    return Content("workers.html", {**page, "tenant": tenant})


def _commands(workflow: Mapping[str, Any], messages: Sequence[str]) -> dict[str, str]:
    """Return the commands that make sense for a workflow, by what they do. `messages` are those for which it waits."""
    key = (workflow["tenantId"], workflow["workflowId"])
    if workflow["status"] == WorkflowStatus.FAILED:
        return {"Continue it: a step that ended it runs again": command("workflows", "retry", *key)}
    if workflow["status"] in ENDED:
        return {}
    # As it stands, the command fails: data of another type than the function waits for would end the workflow.
    sends = {f"Send it the message {name}": command("workflows", "send", *key, name, data="JSON") for name in messages}
    return {**sends, "Cancel it": command("workflows", "cancel", *key)}


WORKFLOWS = main_view("workflows", "Workflows", _show_list, "tenant", "status", "workflow_type", "cursor", "after")
WORKFLOW = item_view("workflow", WORKFLOWS, _show, "cursor")
WORKERS = View("workers", None, WORKFLOWS.path, frozenset({"tenant", "cursor", "after"}), _show_workers)
