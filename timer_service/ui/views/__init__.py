"""The views: each reads what one page shows."""

from timer_service.ui.views.failed import EVENTS, FAILED, PARKED
from timer_service.ui.views.overview import OVERVIEW
from timer_service.ui.views.runs import RUN, RUNS
from timer_service.ui.views.schedules import SCHEDULE, SCHEDULES
from timer_service.ui.views.search import SEARCH
from timer_service.ui.views.signals import SIGNAL, SIGNALS
from timer_service.ui.views.timers import TIMER, TIMERS
from timer_service.ui.views.workflows import WORKERS, WORKFLOW, WORKFLOWS

VIEWS = (
    *(OVERVIEW, TIMERS, TIMER, FAILED, EVENTS, PARKED, SIGNALS, SIGNAL, RUNS, RUN, SCHEDULES, SCHEDULE),
    *(WORKFLOWS, WORKFLOW, WORKERS, SEARCH),
)
