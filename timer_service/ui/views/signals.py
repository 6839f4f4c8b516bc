"""The signals of a tenant, and one signal with its firings."""

from collections.abc import Mapping
from typing import Any

from timer_service.signals.messages import TriggerKind
from timer_service.signals.queries import QUERIES, GetSignal
from timer_service.signals.signal import Status
from timer_service.ui.formats import day_and_time
from timer_service.ui.links import command
from timer_service.ui.pages import Content, Redirect
from timer_service.ui.tenants import Rows
from timer_service.ui.views.lists import StatusList, TenantChoice, read_page
from timer_service.ui.views.view import Asked, item_view, main_view

_ROUTES = {route.name: route for route in QUERIES}
CHOICE = TenantChoice(
    things="signals",
    rows=Rows("work_signals"),
    hint="Create the first one:",
    example=f"{command('signals', 'create', 'acme', 'ask-kim')} --item ticket-1 --on blocked",
    order="By status and id; those that have ended are the last.",
)
_LIST = StatusList(CHOICE, _ROUTES["list-signals"], Status)


async def _show_list(asked: Asked) -> Content | Redirect:
    content = await _LIST.show(asked, "signals.html", work_item_id=asked.parameters.identifier("work_item_id"))
    if isinstance(content, Redirect):
        return content
    for signal in content.values.get("items", ()):
        signal["firesWhen"] = _fires_when(signal)
    return content


async def _show(asked: Asked) -> Content:
    tenant, signal_id = asked.parameters.key()
    signal = await asked.reads.ask(_ROUTES["get-signal"], tenant, GetSignal(signal_id=signal_id))
    firings = await read_page(asked, _ROUTES["list-firings"], tenant, signal_id=signal_id)
    values = {**firings, "signal": signal, "fires_when": _fires_when(signal), "commands": _commands(signal)}
    return Content("signal.html", values)


def _fires_when(signal: Mapping[str, Any]) -> str:
    """Return the condition of a signal as the end of a sentence; nothing if its trigger is invalid."""
    if "triggerError" in signal:
        return ""
    match signal["triggerSpec"]:
        case {"to": [*statuses]} if signal["triggerKind"] == TriggerKind.EVENT:
            return f"{signal.get('workItemId', 'the work item')} becomes {' or '.join(map(str, statuses))}"
        case {"at": str(at)} if signal["triggerKind"] == TriggerKind.TIME:
            return f"it is {day_and_time(at)} UTC"
        case _:
            return "its trigger is true"


def _commands(signal: Mapping[str, Any]) -> dict[str, str]:
    """Return the commands that make sense for a signal, by what they do."""
    verbs = {
        Status.ACTIVE: {"Pause it": "pause", "End it: its work is done": "resolve", "Cancel it": "cancel"},
        Status.PAUSED: {"Let it fire again": "activate", "End it: its work is done": "resolve"},
        Status.FIRED: {"Let it fire again": "activate", "End it: its work is done": "resolve"},
    }
    key = (signal["tenantId"], signal["signalId"])
    return {what: command("signals", verb, *key) for what, verb in verbs.get(signal["status"], {}).items()}


SIGNALS = main_view("signals", "Signals", _show_list, "tenant", "status", "work_item_id", "cursor", "after")
SIGNAL = item_view("signal", SIGNALS, _show, "cursor")
