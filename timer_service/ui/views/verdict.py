"""What does not work, each reason once, for the verdict of the overview."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from timer_service.core.due.loop import Loop
from timer_service.core.ports.database import Row
from timer_service.core.ports.health import Health
from timer_service.ui.formats import at_least, duration
from timer_service.ui.instance import Instance
from timer_service.ui.samples import read_overdue
from timer_service.ui.tenants import MOST_COUNTED

_LATE_SECONDS = 30
"""Due rows that wait longer need attention."""
_NAMED_LOOPS = 3
"""How many loops with one reason are named."""


class Fault(NamedTuple):
    """Something that does not work, and the parts that it affects."""

    reason: str
    parts: Sequence[str]


def find_faults(instance: Instance, loops: Sequence[Loop], of_page: Mapping[str, Health]) -> list[Fault]:
    """Return what is wrong, each reason once: the broker, for example, is the reason of several parts.

    `of_page` is the health of what this page needs, by name. A reason that another one ends with is the same.
    """
    found: dict[str, list[str]] = {}
    of_loops = {loop.health.reason: health_of(loop)[1].reason for loop in loops}  # flows may have it with its name
    of_parts = (instance.needs().items(), instance.flows().items(), of_page.items(), map(health_of, loops))
    for name, health in chain.from_iterable(of_parts):
        if health.reason is not None:
            reason = of_loops.get(health.reason) or health.reason
            whole = next((each for each in found if each.endswith(f": {reason}")), reason)
            found.setdefault(whole, []).append(name)
    return [*(Fault(reason, _shorten(parts)) for reason, parts in found.items()), *_late(instance)]


def _shorten(parts: Sequence[str]) -> Sequence[str]:
    """Return parts, with the number of many loops instead of their names, which the page lists below."""
    others = [each for each in parts if not each.startswith("loop ")]
    count = len(parts) - len(others)
    return parts if count <= _NAMED_LOOPS else [*others, f"{count} loops"]


def _late(instance: Instance) -> Sequence[Fault]:
    """Return the tables whose due rows wait for long. Workflows wait for the workers of users."""
    return [
        Fault(f"{count:,} due rows wait, the oldest for {duration(int(seconds * 1000))}", [table])
        for table, (count, seconds) in read_overdue(instance.registry).items()
        if seconds > _LATE_SECONDS and table != "workflows"
    ]


def blocked_commands(rows: Sequence[Row]) -> Sequence[Fault]:
    """Return the commands that wait behind one that cannot be applied, by the reason."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["last_error"], []).append(row)
    return [
        Fault(
            f"{at_least(sum(int(row['commands']) for row in those), MOST_COUNTED)} commands wait: {reason}",
            [f"tenant {row['tenant_id']}" for row in those],
        )
        for reason, those in found.items()
    ]


def health_of(loop: Loop) -> tuple[str, Health]:
    """Return a loop, and its health without its name: many loops have the same reason. One that hangs is down, too."""
    name, reason = f"loop {loop.name}", loop.health.reason
    if reason is None:
        return name, Health.down("hangs") if loop.stalled else loop.health
    return name, Health.down(reason.removeprefix(f"{name} ").removeprefix("fails: "))
