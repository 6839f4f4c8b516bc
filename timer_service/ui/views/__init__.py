"""The views: each reads what one page shows."""

from timer_service.ui.views import timers
from timer_service.ui.views.overview import OVERVIEW
from timer_service.ui.views.timers import TIMER, TIMERS

VIEWS = (OVERVIEW, TIMERS, TIMER)
TENANT_ROWS = (timers.CHOICE.rows,)
"""The rows by which the page finds tenants."""
