"""The running service: the parts of an instance, and how they start and stop."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.routing import Route

from timer_service.adapters.tracing import Tracing
from timer_service.app.brokers import ServiceBroker
from timer_service.app.page import build_page
from timer_service.app.slices import Workers, build_clock_repair, queries, routes
from timer_service.app.storage import Storage
from timer_service.app.tasks import KeptTask, build_loop, finish
from timer_service.app.worker_requests import WorkerRequests
from timer_service.config import Config
from timer_service.core.due.loop import Loop, Wakeups, Worker
from timer_service.core.intake.backlog import BacklogGate
from timer_service.core.intake.route import Lane
from timer_service.core.limits.audit import AuditLog
from timer_service.core.limits.event_allowances import EventAllowances
from timer_service.core.limits.quotas import Quotas
from timer_service.core.ports.broker import RequestSubscription
from timer_service.core.ports.health import HEALTHY, Health, worst
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.service.slice import Parts
from timer_service.core.service.upkeep import DatabaseProbe
from timer_service.core.values.address import Kind
from timer_service.core.values.budget import Budget
from timer_service.core.values.error_text import error_text
from timer_service.core.values.errors import DatabaseUnavailableError, StartError
from timer_service.http import HttpServer, http_app, serve_http
from timer_service.supervisor import NO_SUPERVISOR, Supervisor
from timer_service.ui.rejections import NewestRejections
from timer_service.workflows.tasks import dispatcher
from timer_service.workflows.tasks.hints import Hints

log = logging.getLogger(__name__)

_UPKEEP_INTERVAL = timedelta(seconds=5)
_STREAMS = "streams"
_LOOK_SECONDS = 0.05
_CATCHING_UP = Health.down("nothing fires until the commands are handled that were stored before the start")


class App:
    """One instance. Its role decides whether it handles commands and queries, runs the workers, or both."""

    def __init__(
        self,
        config: Config,
        storage: Storage,
        broker: ServiceBroker,
        metrics: MetricsPort,
        registry: CollectorRegistry,
        *,
        tracing: Tracing | None = None,
    ) -> None:
        """Build the parts of the role. Nothing runs before `run`. Without `tracing`, there are no spans."""
        self._config = config
        self._database = storage.database
        self._clock = storage.clock
        self._broker = broker
        self._registry = registry
        self._rejections = NewestRejections()
        audit = AuditLog()
        self._parts = Parts(
            database=storage.database,
            broker=broker,
            clock=storage.clock,
            metrics=metrics,
            batch_size=config.batch_size,
            max_attempts=config.max_attempts,
            visibility_timeout=config.visibility_timeout,
            wake=self._wake,
            budget=Budget.of(config.memory_budget),
            quotas=Quotas(config.limits, alone=storage.database.exclusive),
            allowances=EventAllowances(
                config.limits, metrics=metrics, audit=audit, keeps_events_for=lambda: broker.streams.keeps_events_for
            ),
            audit=audit,
            offer=self._offer,
            publish=None if tracing is None else tracing.trace_events(broker.publish),
            cloudevents=config.cloudevents,
            on_done=None if tracing is None else tracing.trace_commands,
            on_rejected=self._rejections.add,
        )
        self._hints = Hints(lambda: broker.hint(dispatcher.LOOP, self._clock.now()))
        for each in (self._parts.publishing, self._parts.dead_letters):  # perhaps because a stream is missing or full
            each.on_failure = lambda: self._wake(_STREAMS, self._clock.now())
        self._workers = None if config.role == "handler" else Workers(config, self._parts)
        self._requests = None if config.role == "worker" else WorkerRequests(config, self._parts)
        self._loops = self._upkeep_loops(storage)
        if self._workers is not None:
            self._loops += self._workers.loops
        if self._requests is not None:
            self._loops += self._requests.loops
        self._wakeups = Wakeups(
            broker,
            self._clock,
            config.polling_interval,
            self._loops,
            alone=self._database.exclusive,
            listeners={} if self._requests is None else self._requests.listeners,
        )
        self._caught_up = asyncio.Event()
        self._queries = self._parts.queries(queries(config.limits))
        self._subscription: RequestSubscription | None = None
        self._answering = KeptTask("queries", self._answer_queries)
        handling = routes(config.enabled, self._wakeups, self._parts.quotas, self._offer)
        wake_relays = partial(self._wakeups.wake, ("outbox", "dead-letters"))
        self._reader = self._parts.reader(
            handling, lambda: wake_relays(self._clock.now()), from_now=config.commands_from == "now"
        )
        self._reading = KeptTask("commands", self._reader.run)
        self._stopping = asyncio.Event()
        self._page = self._build_page()

    def stop(self) -> None:
        """Start to drain; `run` then returns."""
        self._stopping.set()

    def flows(self) -> Mapping[str, Health]:
        """Return the health of each flow of this instance, by name. The reason is that of the first cause."""
        broker, streams, role = self._broker.health, self._broker.streams.health, self._config.role
        reading = self._database.read_health
        database = worst(reading, self._database.health)
        found: dict[str, Health] = {}
        if role != "worker":
            reader = worst(self._reading.health, self._reader.health)
            found["commands"] = worst(broker, streams[Kind.COMMAND], database, reader)
        if self._workers is not None:
            publishing = worst(self._parts.publishing.health, self._parts.dead_letters.health)
            stores = worst(streams[Kind.EVENT], streams[Kind.DEAD_LETTER])
            fires = publishing if self._caught_up.is_set() else _CATCHING_UP
            found["events"] = worst(broker, stores, fires, database, self._workers.health)
        if self._requests is not None:
            requests = HEALTHY if self._subscription is None else self._subscription.health
            found["queries"] = worst(broker, requests, self._answering.health, reading)
            found["requests"] = worst(broker, self._requests.health, database)
        return found

    def _build_page(self) -> Sequence[Route]:
        """Return the routes of the operations page, and add its loop. Without the page, there are none."""
        if not self._config.ui_enabled:
            return ()
        routes, sampling = build_page(
            self._config,
            self._parts,
            self._broker.streams,
            self._registry,
            flows=self.flows,
            needs=self._needs,
            loops=lambda: self._loops,
            rejections=self._rejections,
        )
        self._loops.append(sampling)
        return routes

    def _needs(self) -> Mapping[str, Health]:
        """Return the health of what this instance needs, by name."""
        return {
            "broker": self._broker.health,
            "streams": worst(*self._broker.streams.health.values()),
            "database reads": self._database.read_health,
            "database writes": self._database.health,
        }

    async def run(
        self, supervisor: Supervisor = NO_SUPERVISOR, *, on_draining: Callable[[], None] = lambda: None
    ) -> None:
        """Serve until `stop` is called or the service cannot go on, then drain within the shutdown timeout.

        `supervisor` learns when the service is ready, alive and stopping. `on_draining` is called when draining starts.

        A task or a loop that fails is started again. The service ends if it cannot serve its HTTP pages, which show
        its health, or if the broker has closed the connection for good. It then raises `StartError`, so that a
        supervisor starts it again.
        """
        if self._workers is not None:
            await self._workers.recover()
        await self._wakeups.subscribe()
        if self._config.role != "worker":
            receive = self._queries.receive
            self._subscription = await self._broker.serve(Kind.QUERY, self._queries.names, receive)
            if self._requests is not None:
                await self._requests.open(self._broker, self._wakeups)
            await self._reader.open()
        pages = http_app(self._registry, health=self._health, stalled=self._stalled, more=self._page)
        async with serve_http(pages, self._config.http_host, self._config.http_port) as server:
            tasks = self._start_tasks()
            answering = asyncio.create_task(self._answering.run(), name="queries")
            catching_up = asyncio.create_task(KeptTask("catch-up", self._catch_up).run(), name="catch-up")
            reporting = partial(supervisor.report, ready=self._is_ready, alive=lambda: not self._stalled())
            reported = asyncio.create_task(KeptTask("supervisor", reporting).run(), name="supervisor")
            log.info("serving", extra={"http": f"http://{self._config.http_host}:{server.port}"})
            failure = await self._wait(tasks, server)
            self._stopping.set()
            on_draining()
            reported.cancel()
            supervisor.stopping()
            log.info("draining", extra={"reason": failure or "asked to stop"})
            catching_up.cancel()
            self._caught_up.set()  # loops that have not begun would never end
            await self._drain(tasks)
            answering.cancel()  # only now, so that queries are answered during the drain
        if failure is not None:
            raise StartError(failure)

    async def _answer_queries(self) -> None:
        """Answer queries, if this role receives any."""
        if self._subscription is not None:
            await self._queries.run(self._subscription)

    async def _catch_up(self) -> None:
        """Wait until the commands are handled that were stored before the start. Then let the workers begin.

        A timer that one of these commands cancels or moves must not fire before, for example after a restore.
        """
        gate = BacklogGate(self._broker, self._database)
        is_open = False
        while not is_open:
            try:
                is_open = await gate.is_open(self._clock.now())
            except DatabaseUnavailableError as error:  # the loops report it
                log.debug("cannot look how far the commands are handled", extra={"reason": error_text(error)})
            await asyncio.sleep(_LOOK_SECONDS)
        self._caught_up.set()

    def _start_tasks(self) -> list[asyncio.Task[None]]:
        """Start the loops and the reader. The loops of workers begin after the catch-up, the other loops at once."""
        late = [loop for part in (self._workers, self._requests) if part is not None for loop in part.loops]
        kept = [KeptTask(each.name, each.run, after=self._caught_up if each in late else None) for each in self._loops]
        if self._config.role != "worker":
            kept.append(self._reading)
        tasks = [asyncio.create_task(each.run(), name=each.name) for each in kept]
        return tasks if self._requests is None else [*tasks, *self._requests.tasks()]

    async def _wait(self, tasks: list[asyncio.Task[None]], server: HttpServer) -> str | None:
        """Wait until the service must stop. Return the reason; None if it was asked to stop."""
        stopping = asyncio.create_task(self._stopping.wait(), name="stop")
        lost = asyncio.create_task(self._broker.wait_lost(), name="broker-lost")
        try:
            needed: list[asyncio.Task[Any]] = [*tasks, server.task, stopping, lost]
            ended, _ = await asyncio.wait(needed, return_when=asyncio.FIRST_COMPLETED)
            if stopping in ended:
                return None
            if lost in ended:
                return f"the connection to the broker is closed and cannot be restored: {lost.result()}"
            return f"a task ended unexpectedly: {', '.join(sorted(map(_describe_end, ended)))}"
        finally:
            stopping.cancel()
            lost.cancel()

    async def _drain(self, tasks: list[asyncio.Task[None]]) -> None:
        """Stop all parts, and wait for their tasks. Work that the timeout cancels is done again after a restart."""
        for loop in self._loops:
            loop.stop()
        if self._requests is not None:
            tasks = [asyncio.create_task(self._requests.close(), name="requests-close"), *tasks]
        tasks = [asyncio.create_task(self._reader.stop(), name="reader-stop"), *tasks]
        await finish(tasks, self._config.shutdown_timeout.total_seconds())
        await self._hints.close()

    def _upkeep_loops(self, storage: Storage) -> list[Loop]:
        """Return the loops that every role has. They keep the clock, the database, the streams and the audit log."""
        workers: dict[str, Worker] = {
            **storage.upkeep,
            "database": DatabaseProbe(self._database),
            "clock-repair": build_clock_repair(self._parts),
            "audit": self._parts.audit,
        }
        return [
            *(build_loop(self._parts, name, worker, _UPKEEP_INTERVAL) for name, worker in workers.items()),
            build_loop(self._parts, _STREAMS, self._broker.streams, _UPKEEP_INTERVAL, is_of_database=False),
        ]

    def _offer(self, lane: Lane, at: int) -> None:
        """Offer a row of a lane to the polls of workers. If only other instances have polls, send these a hint."""
        if self._requests is not None:
            self._requests.offer(lane, at)
        elif not self._database.exclusive:
            self._hints.want()

    def _wake(self, name: str, at: int) -> None:
        """Wake a loop of this instance at an instant. If its role does not have the loop, do nothing."""
        for loop in self._loops:
            if loop.name == name:
                loop.wake(at)

    def _health(self) -> Mapping[str, Health]:
        """Return what /readyz shows: the flows, and the service itself, which is down while it drains."""
        service = Health.down("draining") if self._stopping.is_set() else HEALTHY
        return {**self.flows(), "service": service}

    def _is_ready(self) -> bool:
        return not any(each.reason for each in self._health().values())

    def _stalled(self) -> list[str]:
        """Return the names of the parts that hang, so that only a new process helps."""
        stalled = [loop.name for loop in self._loops if loop.stalled]
        if self._reader.stalled:
            stalled.append(self._reading.name)
        if not self._broker.reading:
            stalled.append("broker-reader")
        return stalled


def _describe_end(task: asyncio.Task[Any]) -> str:
    """Return the name of a task that has ended, with its error if there is one."""
    error = None if task.cancelled() else task.exception()
    return task.get_name() if error is None else f"{task.get_name()} ({error_text(error)})"
