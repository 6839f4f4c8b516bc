"""The schedules of a tenant, and one schedule with its next slots."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from timer_service.schedules.messages import ShownStatus
from timer_service.schedules.queries import QUERIES
from timer_service.schedules.views import GetSchedule
from timer_service.ui.links import command
from timer_service.ui.pages import Content
from timer_service.ui.tenants import Rows
from timer_service.ui.views.lists import StatusList, TenantChoice
from timer_service.ui.views.view import Asked, item_view, main_view

_ROUTES = {route.name: route for route in QUERIES}
CHOICE = TenantChoice(
    things="schedules",
    rows=Rows("schedules"),
    hint="Put the first one:",
    example=f"{command('schedules', 'put', 'acme', 'report')} --cron '0 9 * * MON-FRI' --zone Europe/Berlin",
    order="By status and id; those that have ended are the last.",
)
_SHOW_LIST = partial(StatusList(CHOICE, _ROUTES["list-schedules"], ShownStatus).show, template="schedules.html")
_UPCOMING = 10


async def _show(asked: Asked) -> Content:
    tenant, schedule_id = asked.parameters.key()
    request = GetSchedule(schedule_id=schedule_id, upcoming=_UPCOMING)
    schedule = await asked.reads.ask(_ROUTES["get-schedule"], tenant, request)
    values = {
        "schedule": schedule,
        "upcoming": schedule.get("upcoming"),
        "commands": _commands(schedule),
    }
    return Content("schedule.html", values)


def _commands(schedule: Mapping[str, Any]) -> dict[str, str]:
    """Return the commands that make sense for a schedule, by what they do."""
    verbs = {
        ShownStatus.ACTIVE: {"Pause it": "pause"},
        ShownStatus.PAUSED: {"Let it fire again": "resume"},
        ShownStatus.ENDED: {},
    }
    wanted = {**verbs[schedule["status"]], "Fire it once, now": "trigger", "Delete it": "delete"}
    key = (schedule["tenantId"], schedule["scheduleId"])
    return {what: command("schedules", verb, *key) for what, verb in wanted.items()}


SCHEDULES = main_view("schedules", "Schedules", _SHOW_LIST, "tenant", "status", "cursor", "after")
SCHEDULE = item_view("schedule", SCHEDULES, _show)
