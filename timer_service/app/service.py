"""The running service: the parts of an instance, and how they start and stop."""

import asyncio
import logging
from collections.abc import Mapping
from datetime import timedelta

from prometheus_client import CollectorRegistry

from timer_service.adapters.nats import NatsBroker
from timer_service.app.slices import QUERIES, Workers, routes
from timer_service.app.storage import Storage
from timer_service.config import Config
from timer_service.core.broker import Subscription
from timer_service.core.budget import Budget
from timer_service.core.errors import StartError
from timer_service.core.health import HEALTHY, Health
from timer_service.core.loop import Loop
from timer_service.core.metrics_port import MetricsPort
from timer_service.core.slice import Parts
from timer_service.core.wakeups import Wakeups
from timer_service.http import http_app, serve_http

log = logging.getLogger(__name__)

_UPKEEP_INTERVAL = timedelta(seconds=5)


class App:
    """One instance. Its role decides whether it handles commands and queries, runs the workers, or both."""

    def __init__(
        self,
        config: Config,
        storage: Storage,
        broker: NatsBroker,
        metrics: MetricsPort,
        registry: CollectorRegistry,
    ) -> None:
        self._config = config
        self._database = storage.database
        self._clock = storage.clock
        self._broker = broker
        self._metrics = metrics
        self._registry = registry
        self._parts = Parts(
            database=storage.database,
            broker=broker,
            clock=storage.clock,
            metrics=metrics,
            batch_size=config.batch_size,
            max_attempts=config.max_attempts,
            visibility_timeout=config.visibility_timeout,
            wake=self._wake,
            reply_prefix=config.reply_prefix,
            budget=Budget.of(config.memory_budget),
        )
        self._workers = None if config.role == "handler" else Workers(config, self._parts)
        self._loops = [
            Loop(
                name,
                worker,
                clock=self._clock,
                polling_interval=_UPKEEP_INTERVAL,
                metrics=metrics,
                outages=self._parts.outages,
            )
            for name, worker in storage.upkeep.items()
        ]
        if self._workers is not None:
            self._loops += self._workers.loops
        self._wakeups = Wakeups(
            broker, self._clock, config.polling_interval, self._loops, alone=self._database.exclusive
        )
        self._queries = self._parts.queries(QUERIES)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Start to drain; `run` then returns."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve until `stop` is called or a part ends, then drain within the shutdown timeout.

        Raises `StartError` if the broker closed the connection for good.
        """
        if self._workers is not None:
            await self._workers.recover()
        await self._wakeups.subscribe()
        subscription = await self._serve_commands() if self._config.role != "worker" else None
        pages = http_app(self._registry, health=self._health, stalled=self._stalled)
        async with serve_http(pages, self._config.http_host, self._config.http_port) as port:
            tasks = [asyncio.create_task(loop.run(), name=loop.name) for loop in self._loops]
            if subscription is not None:
                consumer = self._parts.consumer(routes(self._config.enabled, self._wakeups))
                tasks.append(asyncio.create_task(consumer.run(subscription), name="consumer"))
            stopping = asyncio.create_task(self._stopping.wait(), name="stop")
            lost = asyncio.create_task(self._broker.wait_lost(), name="broker-lost")
            log.info("serving", extra={"http": f"http://{self._config.http_host}:{port}"})
            ended, _ = await asyncio.wait([*tasks, stopping, lost], return_when=asyncio.FIRST_COMPLETED)
            self._stopping.set()
            log.info("draining", extra={"ended": sorted(task.get_name() for task in ended)})
            await self._drain(subscription, tasks)
            stopping.cancel()
            lost.cancel()
        if lost in ended:
            raise StartError(f"the connection to the broker is closed and cannot be restored: {lost.result()}")

    async def _serve_commands(self) -> Subscription:
        await self._broker.serve_queries(self._queries.names, self._queries.answer)
        return await self._broker.subscribe(alone=self._database.exclusive)

    async def _drain(self, subscription: Subscription | None, tasks: list[asyncio.Task[None]]) -> None:
        """Wait for the tasks to finish. Work that the timeout cancels is done again after a restart."""
        for loop in self._loops:
            loop.stop()
        if subscription is not None:
            tasks = [asyncio.create_task(subscription.close(), name="subscription-close"), *tasks]
        _, late = await asyncio.wait(tasks, timeout=self._config.shutdown_timeout.total_seconds())
        for task in late:
            log.warning("task not finished in time; cancelling it", extra={"task": task.get_name()})
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    def _wake(self, name: str, at: int) -> None:
        for loop in self._loops:
            if loop.name == name:
                loop.wake(at)

    def _health(self) -> Mapping[str, Health]:
        return {
            "broker": self._broker.health,
            "database": self._database.health,
            "service": Health.down("draining") if self._stopping.is_set() else HEALTHY,
        }

    def _stalled(self) -> list[str]:
        return [loop.name for loop in self._loops if loop.stalled]
