"""The operations page of an instance: its routes, and the loop that takes its samples."""

import socket
from collections.abc import Callable, Mapping, Sequence

from prometheus_client import CollectorRegistry
from starlette.routing import Route

from timer_service.app.brokers import Streams
from timer_service.app.tasks import build_loop
from timer_service.config import Config
from timer_service.core.due.loop import Loop
from timer_service.core.ports.health import Health
from timer_service.core.service.slice import Parts
from timer_service.core.values.address import Kind
from timer_service.core.values.errors import StartError
from timer_service.ui.instance import Instance
from timer_service.ui.rejections import NewestRejections
from timer_service.ui.samples import INTERVAL, Samples

_LOOP = "page"
_OPTIONAL = {"jinja2", "markupsafe"}


def build_page(
    config: Config,
    parts: Parts,
    streams: Streams,
    registry: CollectorRegistry,
    *,
    flows: Callable[[], Mapping[str, Health]],
    needs: Callable[[], Mapping[str, Health]],
    loops: Callable[[], Sequence[Loop]],
    rejections: NewestRejections,
) -> tuple[Sequence[Route], Loop]:
    """Return the routes of the page and the loop that takes its samples.

    `flows` and `needs` return the health of what the instance does and of what it needs, by name. Raises `StartError`
    if the templates cannot be rendered.
    """
    try:
        from timer_service.ui.routes import ui_routes  # noqa: PLC0415 - optional dependency
    except ModuleNotFoundError as error:
        if error.name not in _OPTIONAL:
            raise
        raise StartError("TIMER_UI_ENABLED needs jinja2: pip install 'timer-service[ui]'") from error
    samples = Samples(registry)
    instance = Instance(
        name=f"{socket.gethostname()}:{config.http_port}",
        database=parts.database,
        clock=parts.clock,
        role=config.role,
        started_at=parts.clock.now(),
        dead_letters=streams.name(Kind.DEAD_LETTER),
        http_host=config.http_host,
        registry=registry,
        samples=samples,
        flows=flows,
        needs=needs,
        loops=loops,
        rejected=lambda: rejections.all,
    )
    return ui_routes(instance), build_loop(parts, _LOOP, samples, INTERVAL, is_of_database=False)
