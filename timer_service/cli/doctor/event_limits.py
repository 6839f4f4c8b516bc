"""Whether the limits of the tenants keep one of them from filling the stream of events."""

from collections.abc import Iterator, Mapping
from typing import Any

from timer_service.cli.doctor.finding import Finding, Status
from timer_service.core.limits.tenant_limits import TenantLimits

_DOCS = "docs/operations.md, Limit the events of a tenant"


def check_event_limits(limits: TenantLimits, config: Mapping[str, Any]) -> Iterator[Finding]:
    """Compare the limits `published_events` with the stream of events. `config`: its settings."""
    name, room = f"limits of {config['name']}", config["max_bytes"]
    default = limits.default.published_events
    named = [each.published_events for each in limits.tenants.values()]
    known = [most for most in named if most is not None]
    if default is None or None in named:
        text = "a tenant without the limit published_events can fill the stream for all others"
        yield Finding(name, Status.NOTE, text, f"Set it in TIMER_LIMITS_FILE ({_DOCS}).")
    if room > 0 and (needed := 2 * (sum(known) + (default or 0))) > room:
        text = f"twice the limits published_events are {needed}, and max_bytes is {room}: tenants together can fill it"
        yield Finding(name, Status.WARN, text, f"Raise max_bytes, or lower the limits ({_DOCS}).")
    elif room > 0 and default:
        tenants = (room - 2 * sum(known)) // (2 * default)
        yield Finding(name, Status.OK, f"room for {tenants} tenants with the default limit published_events")
