"""The overview: how much there is to do, how fast it is done, and what is wrong."""

import platform
from importlib.metadata import version
from typing import Any

from timer_service.core.due.loop import Loop
from timer_service.ui import charts
from timer_service.ui.activity import Activity, Minute, activity
from timer_service.ui.pages import Content
from timer_service.ui.samples import last_passes
from timer_service.ui.views.view import Asked, main_view


async def _show(asked: Asked) -> Content:
    instance = asked.instance
    passes = last_passes(instance.registry)
    hour = activity(instance.samples.all, asked.now)
    values = {
        "activity": hour,
        "charts": _charts(hour),
        "flows": instance.flows(),
        "needs": instance.needs(),
        "loops": [_loop(loop, passes.get(loop.name)) for loop in instance.loops()],
        "role": instance.role,
        "engine": instance.database.engine,
        "version": version("timer-service"),
        "python": platform.python_version(),
        "started_at": instance.started_at,
    }
    return Content("overview.html", values)


def _loop(loop: Loop, passed_at: int | None) -> dict[str, Any]:
    return {"name": loop.name, "health": loop.health, "stalled": loop.stalled, "passed_at": passed_at}


def _charts(hour: Activity) -> dict[str, Any]:
    """Return the shapes of each chart, and the largest value of each. The two lags share one scale."""
    columns = {name: [getattr(minute, name) for minute in hour.minutes] for name in Minute._fields}
    slowest = charts.highest(columns["lag_p99"])
    return {
        "pending": charts.lines(columns["pending"], charts.highest(columns["pending"])),
        "overdue": charts.bars(columns["overdue"]),
        "fired": charts.bars(columns["fired"]),
        "failures": charts.bars(columns["failures"]),
        "lag_p50": charts.lines(columns["lag_p50"], slowest),
        "lag_p99": charts.lines(columns["lag_p99"], slowest),
        "highest": {name: charts.highest(values) for name, values in columns.items()},
    }


OVERVIEW = main_view("", "Overview", _show)
