"""What the app tells the page about the instance that serves it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from timer_service.core.due.loop import Loop
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.database import Database
from timer_service.core.ports.health import Health
from timer_service.ui.rejections import RejectedCommand
from timer_service.ui.samples import Samples


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance, as the page shows it."""

    name: str
    """The name of its machine, and its port."""
    database: Database
    clock: Clock
    role: str
    started_at: int
    """When the instance started, in Unix milliseconds."""
    dead_letters: str
    """The stream of dead letters."""
    http_host: str
    """The address to which the page is bound."""
    registry: CollectorRegistry
    samples: Samples
    flows: Callable[[], Mapping[str, Health]]
    """Returns the health of each flow of this instance, by name."""
    needs: Callable[[], Mapping[str, Health]]
    """Returns the health of what the instance needs, such as the broker, by name."""
    loops: Callable[[], Sequence[Loop]]
    rejected: Callable[[], Sequence[RejectedCommand]]
    """Returns the newest commands that it rejected, newest first."""
