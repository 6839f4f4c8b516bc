"""The operations page of an instance that does not run: a database, a clock and metrics."""

import asyncio
import html
import re
from collections.abc import AsyncIterator, Mapping, MutableMapping
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import urlencode

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from tests.harness.clock import ManualClock
from tests.harness.metrics import RecordingMetrics
from timer_service.core.due.loop import Loop
from timer_service.core.ports.database import Database
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.http import http_app
from timer_service.metrics import Metrics
from timer_service.ui.instance import Instance
from timer_service.ui.rejections import NewestRejections
from timer_service.ui.routes import ui_routes
from timer_service.ui.samples import INTERVAL, Samples


class Answer(NamedTuple):
    """The response to a request."""

    status: int
    headers: Mapping[str, str]
    text: str
    """The body, without the marks around the words of a command."""


class Page:
    """The page. A test changes the health, takes samples and requests pages."""

    def __init__(self, database: Database, clock: ManualClock) -> None:
        self.clock = clock
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)
        self.samples = Samples(self.registry)
        self.health: dict[str, Health] = {"commands": HEALTHY, "events": HEALTHY}
        self.loop = Loop("timers", self.samples, clock=clock, polling_interval=INTERVAL, metrics=RecordingMetrics())
        self.loops = [self.loop]
        self.rejections = NewestRejections()
        self.instance = Instance(
            name="machine-1:9464",
            database=database,
            clock=clock,
            role="all",
            started_at=clock.now(),
            dead_letters="TIMER_DLQ",
            http_host="127.0.0.1",
            registry=self.registry,
            samples=self.samples,
            flows=lambda: self.health,
            needs=lambda: {"broker": HEALTHY},
            loops=lambda: self.loops,
            rejected=lambda: self.rejections.all,
        )

    @cached_property
    def app(self) -> Starlette:
        return http_app(self.registry, health=lambda: self.health, stalled=list, more=ui_routes(self.instance))

    async def get(self, path: str, *, method: str = "GET", host: str = "127.0.0.1:9464", **parameters: Any) -> Answer:
        """Request a page. `parameters` are the query of its URL, unless the path has one."""
        path, _, query = path.partition("?")
        return await request(self.app, path, query or urlencode(parameters), method=method, host=host)

    async def follow(self, path: str) -> AsyncIterator[str]:
        """Yield the text of a page, of the next page to which it leads, and so on."""
        while path:
            text = (await self.get(path)).text
            yield text
            path = next((html.unescape(each) for each in re.findall(r'rel="next" href="([^"]*)"', text)), "")


async def request(app: Starlette, path: str, query: str, *, method: str, host: str) -> Answer:
    """Send a request to an application, without a network."""
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", host.encode())],
    }
    sent: list[Any] = []

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    headers = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    body = b"".join(each.get("body", b"") for each in sent[1:]).decode()
    return Answer(sent[0]["status"], headers, re.sub(r"<span>([^<]*)</span>", r"\1", body))
