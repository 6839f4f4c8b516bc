"""Simulated workers of workflows: the real `timer_service.worker`, with a network that a test controls."""

import asyncio
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.simulation.faults import Fault
from tests.simulation.known_tasks import KnownTasks
from tests.simulation.service import INSTANCES, Service
from tests.simulation.workflow_programs import TYPES, World, changed_function
from timer_service.client.errors import NoAnswerError, QueryError
from timer_service.core.ports.broker import QueryReply, Request
from timer_service.worker.definition import Settings, workflow
from timer_service.worker.process import run_worker
from timer_service.worker.service import REPORT

TENANT = "acme"
LEASE_SECONDS = 30
_MOST_COPIES = 6
_ROUNDS = 200


class Packet(NamedTuple):
    """A request under way, and where its reply goes."""

    request: Request
    reply: "asyncio.Future[QueryReply]"


class Network:
    """The requests under way. A test delivers, loses, repeats and reorders them, and loses replies."""

    def __init__(self, service: Service) -> None:
        self.under_way: list[Packet] = []
        self.copies: list[Request] = []
        """The last reports that were delivered or lost."""
        self.loses_replies_to: str | None = None
        """The name of the requests whose replies are lost, after `replies_left` more have arrived."""
        self.replies_left = 0
        self._service = service
        self._numbers = itertools.count()
        self._sent: dict[str, tuple[str, Packet]] = {}
        """The worker and its request, by where the reply goes."""
        self.tasks = KnownTasks(service.loop.time)
        service.answer = self._answer

    async def request(self, worker: str, name: str, body: bytes, timeout_seconds: float) -> Mapping[str, Any]:
        request = Request(name, TENANT, body, f"_INBOX.{next(self._numbers)}")
        reply = asyncio.get_running_loop().create_future()
        ends = self.tasks.sent(worker, body)
        packet = Packet(request, reply)
        self.under_way.append(packet)
        self._sent[request.reply_to] = worker, packet
        try:
            async with asyncio.timeout(timeout_seconds):
                document: Mapping[str, Any] = json.loads((await reply).body)
        except TimeoutError as error:
            raise NoAnswerError(f"no answer within {timeout_seconds} s") from error
        finally:
            self.tasks.answered(ends)
        if "error" in document:
            raise QueryError.read(document["error"])
        return document

    def take(self, index: int | None = None) -> list[Request]:
        """Remove and return a request under way, or all of them."""
        taken = self.under_way if index is None else self.under_way[index : index + 1]
        self.under_way = [] if index is None else [*self.under_way[:index], *self.under_way[index + 1 :]]
        requests = [each.request for each in taken]
        reports = [each for each in requests if each.name == REPORT]
        self.copies = [*self.copies, *reports][-_MOST_COPIES:]
        return requests

    def _answer(self, request: Request, reply: QueryReply) -> None:
        if request.reply_to not in self._sent:
            return
        worker, packet = self._sent.pop(request.reply_to)
        if not packet.reply.done() and self._arrives(request):
            packet.reply.set_result(reply)
            self.tasks.arrived(worker, packet.request.body, json.loads(reply.body))

    def _arrives(self, request: Request) -> bool:
        if request.name == self.loses_replies_to:
            self.replies_left -= 1
            return self.replies_left >= 0
        return self._service.broker.health.usable


class _Port:
    """The port of one worker. A dead worker sends nothing."""

    def __init__(self, worker: str, network: Network) -> None:
        self._worker, self._network = worker, network
        self.is_dead = False

    async def request(self, name: str, body: bytes, timeout_seconds: float) -> Mapping[str, Any]:
        if self.is_dead:
            raise NoAnswerError("the worker is dead")
        return await self._network.request(self._worker, name, body, timeout_seconds)


class SimulatedWorker:
    """A worker process."""

    def __init__(self, name: str, network: Network, world: World, *, slots: int, is_changed: bool) -> None:
        self.name = name
        self._port = _Port(name, network)
        functions = [workflow(each)(changed_function) for each in TYPES] if is_changed else world.functions(name)
        workflows = {each.type: each for each in functions}
        self.settings = Settings(TENANT, workflows, slots=slots, lease_seconds=LEASE_SECONDS, worker_id=name)
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._task = loop.create_task(run_worker(self._port.request, self.settings, self._stop))

    def stop(self) -> None:
        """Stop in order: tasks are finished or released."""
        self._stop.set()

    def die(self) -> None:
        """Stop at once, at whatever it awaits."""
        self._port.is_dead = True
        if self._task is not None:
            self._task.cancel()


class Cluster:
    """Two instances of the service, workers, the network between them, and the time."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.network = Network(service)
        self.world = World(self._results, self.network.tasks.may_have_ended)
        self.workers: list[SimulatedWorker] = []
        self._stopped: list[SimulatedWorker] = []
        """Those that stop in order, and may not have finished."""
        self._offset = service.clock.now()
        self._names = (f"worker-{number}" for number in itertools.count(1))
        service.loop.has_timers = True

    def _results(self, workflow_id: str) -> Sequence[Mapping[str, Any]]:
        return results_of(self.service, workflow_id)

    # Workers

    def start_worker(self, *, slots: int = 2, is_changed: bool = False) -> None:
        worker = SimulatedWorker(next(self._names), self.network, self.world, slots=slots, is_changed=is_changed)
        self.workers.append(worker)
        worker.start(self.service.loop)
        self.service.run()

    def kill(self, index: int) -> None:
        """Let a worker die."""
        if self.workers:
            self.workers.pop(index % len(self.workers)).die()
            self.service.run()

    def stop(self, index: int) -> None:
        """Let a worker stop in order."""
        if self.workers:
            worker = self.workers.pop(index % len(self.workers))
            worker.stop()
            self._stopped.append(worker)
            self.service.run()

    def close(self) -> None:
        """End all workers, at the end of a history."""
        for each in [*self.workers, *self._stopped]:
            each.die()
        self.workers, self._stopped = [], []
        self.service.loop.settle()
        self.service.loop.elapsed += 0.02  # the pause after a hint
        self.service.loop.settle()

    # Requests

    def deliver(self, index: int, instance: int, fault: Fault | None) -> None:
        """Deliver one request under way."""
        if self.network.under_way and self.service.broker.health.usable:
            requests = self.network.take(index % len(self.network.under_way))
            self.service.ask(requests, instance, fault)

    def repeat(self, instance: int, *, newest_first: bool) -> None:
        """Deliver the last reports once more. No worker waits for the replies."""
        copies = [each._replace(reply_to="_INBOX.unused") for each in self.network.copies]
        if copies and self.service.broker.health.usable:
            self.service.ask(copies[::-1] if newest_first else copies, instance)

    def exchange(self) -> None:
        """Deliver all requests, and let the dispatchers claim, until nothing is left to do."""
        for _ in range(_ROUNDS):
            if not self.service.broker.health.usable:
                return
            self.deliver_all()
            if not self.dispatch() and not self.network.under_way:
                return
        raise AssertionError("workers and service send requests without end")

    def deliver_all(self) -> None:
        """Deliver the requests under way. The instances share them."""
        requests = self.network.take() if self.service.broker.health.usable else []
        for instance in range(INSTANCES):
            if mine := requests[instance::INSTANCES]:
                self.service.ask(mine, instance)

    def dispatch(self) -> bool:
        """Let the dispatchers claim whose next pass is due. Return whether there were any."""
        due = [number for number, each in enumerate(self.service.instances) if self._look_at(each) <= 0]
        for number in due:
            self.claim(number)
        return bool(due)

    def claim(self, instance: int, fault: Fault | None = None) -> None:
        """Let a dispatcher take a pass, unless one is under way."""
        server = self.service.instances[instance].server
        server.look_at = math.inf
        done = self.service.tick("tasks", instance, fault)
        server = self.service.instances[instance].server  # a crash may have replaced it
        if done is None:  # it failed or is paused: the loop would try again
            server.look_at = self.service.clock.now() + 1000
        elif done.next_at is not None:
            server.look_at = min(server.look_at, done.next_at)

    def _look_at(self, instance: Any) -> float:
        """Return in how many seconds a dispatcher wants its next pass."""
        return float(instance.server.look_at - self.service.clock.now()) / 1000

    # Time

    def wait(self, seconds: float, *, online: bool = True) -> None:
        """Let time pass. If not `online`, no request is delivered meanwhile."""
        loop = self.service.loop
        until = loop.elapsed + seconds
        while True:
            if online:
                self.exchange()
            instants = [loop.next_timer or math.inf]
            if online:
                instants += [loop.elapsed + self._look_at(each) for each in self.service.instances]
            at = max(min(instants), loop.elapsed + 0.001)
            if at > until:
                break
            self._move_to(at)
        self._move_to(max(until, loop.elapsed))
        if online:
            self.exchange()

    def step_clock(self, seconds: float) -> None:
        """Set the clock of the service forward or back. The clocks of the workers do not notice it."""
        self._offset += round(seconds * 1000)
        self._move_to(self.service.loop.elapsed)

    def _move_to(self, elapsed: float) -> None:
        self.service.loop.elapsed = elapsed
        self.service.clock.set(self._offset + int(elapsed * 1000))
        self.service.run()


def results_of(service: Service, workflow_id: str) -> list[Mapping[str, Any]]:
    """Return the results that the function of a workflow has got, in their order, as on the wire."""
    rows = [each for each in service.rows("workflow_effects") if each["workflow_id"] == workflow_id and each["seq"]]
    return [
        {
            "key": f"{row['name']}:{row['n']}" if row["n"] else row["name"],
            "kind": row["kind"],
            "status": row["status"],
            "result": None if row["result"] is None else json.loads(row["result"]),
            "error": None if row["error"] is None else json.loads(row["error"]),
            "seq": row["seq"],
        }
        for row in sorted(rows, key=lambda row: row["seq"])
    ]
