"""The scenarios of workflows: commands, real workers, a network that loses and repeats, and faults at any await."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.simulation.draws import Draw, crashes, instances, outages, reader_faults, worker_faults
from tests.simulation.faults import RELAY_POINTS
from tests.simulation.service import SentCommand, Service
from tests.simulation.workers import LEASE_SECONDS, TENANT, Cluster
from tests.simulation.workflow_check import WorkflowsChecker
from tests.simulation.workflow_model import WorkflowName
from tests.simulation.workflow_programs import PROGRAMS
from timer_service.worker.service import POLL, RENEW, REPORT

_IDS = ["w1", "w1", "w2"]
_ROUNDS_AT_END = 60
_OUTSIDE_LEASE = 31
_numbers = st.integers(0, 5)

_SLOW = {"a": 2, "b": 2}
_plans = st.fixed_dictionaries(
    {
        "program": st.sampled_from([*PROGRAMS, "beside", "gather", "mail", "late"]),
        "fails": st.sampled_from([{}, {"a": 1}, {"b": 1}, {"b": 9}, {"a": 1, "b": 2}]),
        "slow": st.sampled_from([_SLOW, _SLOW, {}, {"a": 45, "b": 45}, {"b": 45}]),
        "slowCalls": st.sampled_from([1, 1, 9]),
        "limit": st.sampled_from([90, 90, 3]),
        "stubborn": st.booleans(),
        "sleepMs": st.sampled_from([4000, 40_000, 40_000, 0, 1]),
    }
)
_starts = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["order", "order", "order", "invoice"]),
        "input": _plans,
        "retry": st.sampled_from([{"maxAttempts": 2}, {"maxAttempts": 3}]),
    },
    optional={
        "deadlineIn": st.sampled_from(["PT5S", "PT20S", "PT600S"]),
        "startIn": st.sampled_from(["PT0S", "PT0S", "PT5S"]),
    },
)
_keys = st.fixed_dictionaries(
    {
        "concurrencyKey": st.sampled_from(["k", "k", "l"]),
        "whenBusy": st.sampled_from(["queue", "queue", "replace", "replace", "skip"]),
    },
    optional={"concurrencyLimit": st.sampled_from([1, 2])},
)
_messages = st.lists(
    st.fixed_dictionaries({"name": st.just("x"), "data": st.integers(0, 1000)}, optional={"messageId": st.just("m1")}),
    min_size=1,
    max_size=3,
)
_kinds = st.sampled_from(["StartWorkflow", "SendToWorkflow", "CancelWorkflow", "CancelWorkflow", "RetryWorkflow"])


def workflows_one_by_one(service: Service, draw: Draw) -> None:
    """Commands come one by one, time passes, and workers end. Every request and every reply arrives."""
    history = _History(service, draw)
    actions = [*[history.command] * 3, *[history.send_in_odd_order] * 2, history.send, history.wait, history.end_worker]
    history.play(draw(st.lists(st.sampled_from(actions), min_size=3, max_size=8)))


def workflows_with_busy_keys(service: Service, draw: Draw) -> None:
    """Many workflows with few concurrency keys are started, end in each way, and are continued."""
    history = _History(service, draw)
    actions = [*[history.start_with_keys] * 3, history.cancel, history.take_turns, history.command, history.end_overdue]
    history.play(draw(st.lists(st.sampled_from(actions), min_size=3, max_size=8)))


def workflows_with_lost_requests(service: Service, draw: Draw) -> None:
    """Requests and replies are lost, late, repeated and reordered."""
    history = _History(service, draw)
    losses = [history.lose_replies, history.lose_replies, history.repeat, history.repeat, history.delay]
    actions = [*losses, history.wait, history.wait, history.cut_off, history.command]
    history.play(draw(st.lists(st.sampled_from(actions), min_size=3, max_size=8)))


def workflows_with_lost_leases(service: Service, draw: Draw) -> None:
    """Workers lose their leases, die, and come back. The clock of the service jumps."""
    history = _History(service, draw)
    losses = [
        history.overtake,
        history.report_late,
        history.report_late,
        history.crash_loop,
        history.end_worker,
        history.set_clock,
    ]
    actions = [*losses, history.send_late, history.send_late, history.wait, history.repeat, history.command]
    history.play(draw(st.lists(st.sampled_from(actions), min_size=3, max_size=8)))


def workflows_that_kill_their_workers(service: Service, draw: Draw) -> None:
    """Workers die again and again. This is for mutants; the other scenarios contain it."""
    history = _History(service, draw)
    history.play([history.crash_loop, history.crash_loop])


def workflows_with_faults(service: Service, draw: Draw) -> None:
    """Everything, with two instances with any fault at any await, and outages of the broker."""
    history = _History(service, draw)
    steady = [history.send_command, history.read_commands, history.read_commands, history.wait, history.exchange]
    faulty = [history.deliver, history.deliver, history.claim, history.claim, history.end_overdue, history.publish]
    keys = [history.send_start_with_key, history.send_start_with_key, history.take_turns]
    rare = [
        history.crash,
        history.crash,
        history.crash,
        history.overtake,
        history.cut_off,
        history.set_clock,
        history.resume,
    ]
    outage = [history.stop_broker, history.start_broker, history.lose_replies, history.start_changed_worker]
    history.play(draw(st.lists(st.sampled_from([*steady, *faulty, *keys, *rare, *outage]), min_size=4, max_size=12)))


class _History:
    """The steps of one history."""

    def __init__(self, service: Service, draw: Draw) -> None:
        self.service, self.draw = service, draw
        self.checker = WorkflowsChecker(service)
        self.cluster = Cluster(service)
        self._retried: set[WorkflowName] = set()
        self._sent_starts = 0

    def play(self, actions: list[Callable[[], None]]) -> None:
        try:
            begin = [self._start_workers, self._start_workflows]
            for act in begin if self.draw(st.booleans()) else begin[::-1]:
                act()
            self.exchange()
            for act in actions:
                act()
                self.checker.check_calls(self.cluster)
            self.finish()
        finally:
            self.cluster.close()

    def _start_workers(self) -> None:
        for _ in range(self.draw(st.sampled_from([1, 2, 2]))):
            self.cluster.start_worker(slots=self.draw(st.sampled_from([1, 2])))

    def _start_workflows(self) -> None:
        for kind in self.draw(st.lists(st.sampled_from(["Start", "Start", "SendTo"]), min_size=2, max_size=4)):
            self._send_and_read([self._draw_command(f"{kind}Workflow")])
            self.cluster.step_clock(0.001)

    # Commands

    def _send_and_read(self, history: Sequence[SentCommand]) -> None:
        self.checker.send(history)
        self.service.catch_up()

    def command(self) -> None:
        self._send_and_read([self._draw_command(self.draw(_kinds))])
        self.exchange()

    def cancel(self) -> None:
        """Cancel a workflow, often an open one. No worker ends another one meanwhile."""
        self._send_and_read([self._draw_command("CancelWorkflow")])

    def send(self) -> None:
        """Send some messages to a workflow."""
        self._send_and_read(self._draw_messages())
        self.exchange()

    def send_late(self) -> None:
        """Messages are read long after they were sent."""
        targets = [name.workflow for name, each in self.checker.workflows.items() if each.waits]
        self.checker.send(self._draw_messages(targets))
        self.cluster.step_clock(_OUTSIDE_LEASE)
        self.service.catch_up()
        self.exchange()

    def send_command(self) -> None:
        self.checker.send([self._draw_command(self.draw(_kinds))])

    def send_in_odd_order(self) -> None:
        """Commands on one workflow are published in any order, one of them twice."""
        workflow = self.draw(st.sampled_from(["w3", "w1"]))
        kinds = ["StartWorkflow", *self.draw(st.lists(_kinds, min_size=1, max_size=2))]
        commands = [self._draw_command(kind, workflow) for kind in kinds]
        order = self.draw(st.permutations([*range(len(commands)), len(commands) - 1]))
        self.service.most_commands = self.draw(st.sampled_from([9, 1, 2]))
        self._send_and_read([commands[index] for index in order])
        self.exchange()

    def _draw_command(self, kind: str, workflow: str | None = None) -> SentCommand:
        """Draw a command. Most commands are about workflows that are open."""
        if kind == "StartWorkflow":
            start = {**self.draw(_starts), **(self.draw(_keys) if self.draw(st.booleans()) else {})}
            return SentCommand(kind, TENANT, {**start, "workflowId": workflow or self.draw(st.sampled_from(_IDS))})
        fields: Mapping[str, Any] = self.draw(_messages)[0] if kind == "SendToWorkflow" else {}
        return SentCommand(
            kind, TENANT, {**fields, "workflowId": self._draw_target() if workflow is None else workflow}
        )

    def send_start_with_key(self) -> None:
        """Send the start of a new workflow, whose key is often busy."""
        self._sent_starts += 1
        fields = {**self.draw(_starts), **self.draw(_keys), "workflowId": f"k{self._sent_starts}"}
        self.checker.send([SentCommand("StartWorkflow", TENANT, fields)])

    def start_with_keys(self) -> None:
        """Start some new workflows, whose keys are often busy."""
        for _ in range(self.draw(st.integers(1, 4))):
            self.send_start_with_key()
        self.service.catch_up()

    def take_turns(self) -> None:
        faults = st.one_of(st.none(), crashes(RELAY_POINTS), outages)
        self.service.tick("workflow-keys", self.draw(instances), self.draw(faults))

    def _draw_target(self) -> str:
        opened = [name.workflow for name, each in self.checker.workflows.items() if each.is_open]
        return self.draw(st.sampled_from([*opened, *opened, *opened, *_IDS]))

    def _draw_messages(self, targets: Sequence[str] = ()) -> list[SentCommand]:
        workflow = {"workflowId": self.draw(st.sampled_from(targets)) if targets else self._draw_target()}
        return [SentCommand("SendToWorkflow", TENANT, {**each, **workflow}) for each in self.draw(_messages)]

    def read_commands(self) -> None:
        """Let a reader take a step."""
        self.service.most_commands = self.draw(st.integers(1, 3))
        self.service.read(self.draw(instances), self.draw(reader_faults))

    # Workers and their requests

    def exchange(self) -> None:
        self.service.tick("workflow-keys")
        self.cluster.exchange()

    def overtake(self) -> None:
        """The clock of the service jumps beyond the leases, and new workers get the tasks of those that still run."""
        self.cluster.step_clock(_OUTSIDE_LEASE)
        self.cluster.start_worker()
        self.cluster.wait(self.draw(st.sampled_from([3, 0.001, 12])))

    def crash_loop(self) -> None:
        """Workers die whenever they have got tasks, or have renewed their leases."""
        renews = self.draw(st.booleans())
        for _ in range(self.draw(st.integers(2, 5))):
            self.cluster.close()
            self.cluster.step_clock(_OUTSIDE_LEASE + 10)
            self.cluster.start_worker()
            self.cluster.exchange()
            if renews:
                self.cluster.wait(LEASE_SECONDS / 3 + 1)

    def end_worker(self) -> None:
        """A worker dies or stops, and another one comes."""
        end = self.draw(st.sampled_from([self.cluster.kill, self.cluster.kill, self.cluster.stop]))
        end(self.draw(_numbers))
        self.cluster.start_worker()

    def start_changed_worker(self) -> None:
        self.cluster.start_worker(is_changed=True)

    def deliver(self) -> None:
        self.cluster.deliver(self.draw(_numbers), self.draw(instances), self.draw(worker_faults))

    def repeat(self) -> None:
        self.cluster.repeat(self.draw(instances), newest_first=self.draw(st.booleans()))

    def lose_replies(self) -> None:
        """Some replies arrive, and then none for some time."""
        network = self.cluster.network
        network.replies_left = self.draw(st.integers(0, 2))
        network.loses_replies_to = self.draw(st.sampled_from([REPORT, REPORT, POLL, RENEW]))
        self.cluster.wait(self.draw(st.sampled_from([12, 3, 0.001])))
        network.loses_replies_to = None

    def claim(self) -> None:
        self.cluster.claim(self.draw(instances), self.draw(worker_faults))

    # Time

    def wait(self) -> None:
        self.cluster.wait(self.draw(st.sampled_from([0.001, 1, 3, 5, 12])))

    def delay(self) -> None:
        """Requests take their time."""
        for _ in range(4):
            self.cluster.deliver_all()
            self.cluster.dispatch()
            self.cluster.wait(self.draw(st.sampled_from([0.7, 0.2, 3])), online=False)

    def report_late(self) -> None:
        """Reports arrive after the leases have run out, and before another worker asks."""
        self.cluster.wait(3, online=False)
        self.cluster.step_clock(_OUTSIDE_LEASE)
        self.cluster.deliver_all()

    def cut_off(self) -> None:
        """Workers and service do not reach each other for some time, which may be longer than a lease."""
        self.cluster.wait(self.draw(st.sampled_from([_OUTSIDE_LEASE, 6, _OUTSIDE_LEASE, 1])), online=False)

    def set_clock(self) -> None:
        self.cluster.step_clock(self.draw(st.sampled_from([-20, -1, 10, _OUTSIDE_LEASE, _OUTSIDE_LEASE])))

    # The service

    def end_overdue(self) -> None:
        faults = st.one_of(st.none(), crashes(RELAY_POINTS), outages)
        self.service.tick("workflow-deadlines", self.draw(instances), self.draw(faults))

    def publish(self) -> None:
        self.service.tick("outbox", self.draw(instances), self.draw(worker_faults))

    def crash(self) -> None:
        """The service crashes. There may be commands that it has not handled."""
        if self.draw(st.booleans()):
            self.send_command()
        self.service.crash()
        self.cluster.wait(self.draw(st.sampled_from([0.001, 3, 16])))

    def resume(self) -> None:
        self.service.resume()

    def stop_broker(self) -> None:
        self.service.stop_broker()

    def start_broker(self) -> None:
        self.service.start_broker()

    # The end

    def finish(self) -> None:
        """Let all commands arrive, and let new workers execute all workflows until they have ended."""
        self.service.start_broker()
        self.service.read_all()
        self.cluster.close()
        self.cluster.start_worker(slots=3)
        for _ in range(_ROUNDS_AT_END):
            self.cluster.exchange()
            self.checker.check_calls(self.cluster)
            self.service.settle("workflow-deadlines", "workflow-keys")
            opened = [each for each in self.checker.workflows.values() if each.is_open]
            if not opened and not self._retry_failed():
                break
            for each in opened:
                self._check_progress(each)
            self._go_on(opened)
        self.cluster.step_clock(self.service.clock.set_back_ms / 1000 + _OUTSIDE_LEASE)  # the outbox has leases too
        self.service.settle("outbox")
        self.checker.check_ends()
        self.checker.check_events()

    def _retry_failed(self) -> bool:
        """Retry the workflows that have failed and were never retried. Return whether there are any."""
        failed = [each for each in self.checker.workflows.values() if each.status == "failed"]
        failed = [each for each in failed if each.name not in self._retried]
        for each in failed:
            self._retried.add(each.name)
            sent = SentCommand("RetryWorkflow", TENANT, {"workflowId": each.name.workflow})
            self._send_and_read([sent])
        return bool(failed)

    def _check_progress(self, workflow: Any) -> None:
        now = self.service.clock.now()
        assert workflow.deadline is None or workflow.deadline > now, f"{workflow} has passed its deadline"

    def _go_on(self, opened: list[Any]) -> None:
        """Let time pass until something is due, or send the messages for which workflows wait."""
        parked = [each for each in opened if each.status == "parked"]
        for each in parked:
            sent = SentCommand("SendToWorkflow", TENANT, {"workflowId": each.name.workflow, "name": "x", "data": 0})
            self._send_and_read([sent])
        available = [each.available for each in opened if each.available is not None]
        if available and not parked:
            seconds = (min(available) - self.service.clock.now()) / 1000
            self.cluster.wait(min(seconds, 10) if seconds > 0 else 5)  # then polls are under way
