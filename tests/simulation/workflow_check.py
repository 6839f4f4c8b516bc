"""Compares each commit about workflows with the model, and the whole history with what users may observe."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.simulation.request_server import AppliedRequests
from tests.simulation.service import MAX_ATTEMPTS, CommitObserver, Handled, Row, SentCommand, Service
from tests.simulation.workers import LEASE_SECONDS, Cluster, results_of
from tests.simulation.workflow_model import EffectModel, KeyModel, Rules, WorkflowModel, WorkflowName
from tests.simulation.workflow_programs import TOO_LATE, expect
from timer_service.core.requests.bodies import encode_answer
from timer_service.core.values.errors import Rejection
from timer_service.core.values.message import Payload, Position
from timer_service.core.values.stored_json import RawJson
from timer_service.workflows.protocol import RenewTasks, ReportTasks

_LEASE_MS = LEASE_SECONDS * 1000
_EVENTS = ("WorkflowCompleted", "WorkflowFailed", "WorkflowCancelled", "WorkflowBlocked")


class WorkflowsChecker(CommitObserver):
    """An observer that applies each commit to the model, and compares the rows with it."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.workflows: dict[WorkflowName, WorkflowModel] = {}
        self._keys = KeyModel(self.workflows)
        self._sent: dict[str, tuple[SentCommand, int]] = {}
        """The commands and when they were sent, by their ids."""
        self._backlog: frozenset[str] = frozenset()
        self._backlog_since = 0, 0
        service.begin(self)

    def send(self, history: Sequence[SentCommand]) -> None:
        """Append commands to the log now."""
        now = self.service.clock.now()
        self._sent |= {command: (sent, now) for command, sent in zip(self.service.send(history), history, strict=True)}

    # Commits

    def commands_committed(self, handled: Sequence[Handled], now: int) -> None:  # noqa: ARG002 - each has its instant
        for each in handled:
            position = each.command.position
            sent, sent_at = self._sent[each.command.id]
            wanted = self._command(sent, position, sent_at, each.at)
            assert each.outcome == wanted, f"{sent} at {position}: {each.outcome}, not {wanted}"
        self.check()

    def _command(self, sent: SentCommand, position: Position, sent_at: int, now: int) -> str:
        name = WorkflowName(sent.tenant, sent.fields["workflowId"])
        workflow = self.workflows.setdefault(name, WorkflowModel(name))
        match sent.type:
            case "StartWorkflow":
                return workflow.start(_in_ms(sent.fields), sent_at, now, self._keys)
            case "SendToWorkflow":
                return workflow.send(sent.fields, position, sent_at, now)
            case "CancelWorkflow":
                return workflow.cancel()
            case _:
                return workflow.retry(sent_at, now, self._keys)

    def requests_committed(self, applied: AppliedRequests) -> None:
        rows = {} if not applied.asked else self._effect_rows()
        for asked, answer in zip(applied.asked, applied.answers, strict=True):
            reply = _read_reply(answer.reply)
            match asked.request:
                case ReportTasks() as request:
                    for report, replied in zip(request.reports, reply["reports"], strict=True):
                        name = WorkflowName(asked.tenant, report.workflow_id)
                        rules = Rules(applied.now, applied.may_time_out, _retry_at(rows, name))
                        wanted = self.workflows[name].report(report, rules)
                        found = replied["outcome"]
                        assert found == wanted, f"{report} of {self.workflows[name]}: {found}, not {wanted}"
                case RenewTasks() as request:
                    rules = Rules(applied.now, applied.may_time_out, _no_retry)
                    names = [(WorkflowName(asked.tenant, each.workflow_id), each.token) for each in request.tasks]
                    lost = [
                        {"workflowId": name.workflow, "token": token}
                        for name, token in names
                        if not self.workflows[name].renew(token, rules)
                    ]
                    assert reply["lost"] == lost, f"{request} lost {reply['lost']}, not {lost}"
        self.check()

    def worker_committed(self, worker: str, now: int, began_at: int) -> None:  # noqa: ARG002 - the pass has one instant
        match worker:
            case "tasks":
                self._follow_claims(began_at)
            case "workflow-deadlines":
                self._follow_deadlines(began_at)
            case "workflow-keys":
                self._follow_turns(began_at)
        self.check()

    def _follow_turns(self, now: int) -> None:
        """Follow the worker of keys: it has looked at a key because of the workflows that it has marked so."""
        rows = self._rows()
        looked_at: dict[str, list[WorkflowModel]] = {}
        for name, each in self.workflows.items():
            if each.frees_key and rows[name]["key_due_at"] is None:
                looked_at.setdefault(each.concurrency_key or "", []).append(each)
        for key, because_of in looked_at.items():
            self._keys.look(key, because_of, now)

    def _follow_claims(self, now: int) -> None:
        rows = self._rows()
        touched = [each for name, each in self.workflows.items() if name in rows and _is_touched(each, rows[name])]
        for each in touched:
            assert each.available is not None, f"{each} was claimed, but it has ended or is parked"
            assert each.available <= now, f"{each} was claimed at {now}, before it was available"
        for each in touched:
            lane = [other for other in self.workflows.values() if other.definition and other.type == each.type]
            waits = [other for other in lane if other.available is not None and other not in touched]
            earlier = [other for other in waits if (other.available or 0) < (each.available or 0)]
            assert not earlier, f"{each} was claimed before {earlier}"
        used = {token for each in self.workflows.values() for token in each.tokens}
        for each in touched:
            token = rows[each.name]["lease_token"]
            assert token not in used, f"{each} was claimed with a token that was used before"
            self._follow_claim(each, rows[each.name], now)

    def _follow_claim(self, workflow: WorkflowModel, row: Row, now: int) -> None:
        due = [each for each in workflow.effects.values() if each.kind == "message" and each.status == "open"]
        if workflow.renewed >= MAX_ATTEMPTS or workflow.attempt >= 3 * MAX_ATTEMPTS:
            workflow.attempt += 1
            workflow.fail("CRASHED")
        elif row["status"] == "running":
            workflow.claim(row["lease_token"], _LEASE_MS, Rules(now, may_time_out=True, retry_at=_no_retry))
        else:
            assert any(each.due is not None and each.due <= now for each in due), f"{workflow} was not sent"
            assert self.service.ledger.unapplied, f"{workflow} was not sent, although no older command is left"
            workflow.hold_undecided(now)

    def _follow_deadlines(self, now: int) -> None:
        rows = self._rows()
        for name, each in self.workflows.items():
            if each.is_open and rows[name]["failure_code"] == "DEADLINE":
                assert each.deadline is not None, f"{each} has no deadline"
                assert each.deadline <= now, f"{each} failed before its deadline"
                assert not self._is_held_back(), f"{each} failed before older commands were handled"
                each.fail("DEADLINE")

    def backlog_is_handled(self) -> None:
        assert not self._is_held_back(), "waits reach their timeouts before older commands were handled"

    def started(self) -> None:
        self._backlog = self.service.ledger.unapplied
        self._backlog_since = self.service.clock.now(), self.service.clock.set_back_ms

    def _is_held_back(self) -> bool:
        """Return whether commands from before the start are not handled, for less than a minute."""
        since, set_back_ms = self._backlog_since
        clock = self.service.clock
        has_waited = clock.now() - since >= 60_000 or clock.set_back_ms != set_back_ms
        return not has_waited and not self._backlog.isdisjoint(self.service.backlog())

    # Comparison of the rows

    def check(self) -> None:
        """Assert that the tables equal the model."""
        rows, effects = self._rows(), self._effect_rows()
        for name, each in self.workflows.items():
            if each.definition is None:
                assert name not in rows or rows[name]["type"] is None, f"{each} is {rows[name]}"
                continue
            row = rows[name]
            found = (row["status"], row["available_at"], row["lease_token"], row["attempt"], row["blocks"])
            wanted = (each.status, each.available, each.token, each.attempt, each.blocks)
            assert found == wanted, f"{each} has the row {found}, not {wanted}"
            assert (row["ended_at"] is None, row["retries"]) == (each.is_open, each.retries)
            place, is_due = row["key_place"], row["key_due_at"] is not None
            assert (place, is_due) == (each.place, each.frees_key), f"{each} has the place {place}, and due is {is_due}"
            number = each.number if each.token else None
            assert row["report_number"] == number, f"{each} has the report number {row['report_number']}"
            assert (row["settled_by"], row["failure_code"]) == (each.settled_by, each.code)
            assert row["seen"] == each.seen, f"{each} has got {row['seen']} results, not {each.seen}"
            mine = {key: _effect(row) for (owner, key), row in effects.items() if owner == name}
            assert mine == each.effects, f"the effects of {each} are {mine}"
        self._check_messages()

    def _check_messages(self) -> None:
        found = Counter(
            (
                WorkflowName(row["tenant_id"], row["workflow_id"]),
                row["name"],
                _position(row),
                row["taken_at"] is not None,
            )
            for row in self.service.rows("workflow_messages")
        )
        wanted = Counter(
            (name, message.name, message.position, message.is_taken)
            for name, each in self.workflows.items()
            for message in each.messages
        )
        assert found == wanted, f"messages: missing {wanted - found}, too many {found - wanted}"

    def _rows(self) -> dict[WorkflowName, Row]:
        return {WorkflowName(row["tenant_id"], row["workflow_id"]): row for row in self.service.rows("workflows")}

    def _effect_rows(self) -> dict[tuple[WorkflowName, str], Row]:
        return {
            (WorkflowName(row["tenant_id"], row["workflow_id"]), _effect_key(row)): row
            for row in self.service.rows("workflow_effects")
        }

    # What users observe

    def check_calls(self, cluster: Cluster) -> None:
        """Assert that each step began after the results that the function needs, and not more often than it may."""
        new, cluster.world.new = cluster.world.new, []
        for call in new:
            workflow = self.workflows[WorkflowName("acme", call.workflow)]
            assert workflow.definition is not None
            asked = expect(self.service.loop, workflow.definition["input"]["program"], call.stored).asked
            assert not call.may_have_ended, f"{call.key} of {workflow} began in a worker whose task may have ended"
            assert call.key in asked, f"{call.key} of {workflow} began before the results that lead to it were stored"
        for (name, key), count in cluster.world.calls.items():
            workflow = self.workflows[WorkflowName("acme", name)]
            repeats = len(workflow.tokens) - workflow.quiet_ends
            most = workflow.reported[key] + repeats
            assert count <= most, f"{key} of {workflow} was called {count} times, at most {most} are allowed"
            lines = cluster.world.lines[name, key]
            assert 1 <= lines <= 1 + repeats, f"the line about {key} of {workflow} was logged {lines} times"
        late = [key for key, row in self._effect_rows().items() if TOO_LATE in (row["result"] or "")]
        assert not late, f"results were stored after the end of their attempts: {late}"

    def check_ends(self) -> None:
        """Assert that each workflow that was started has ended, and as its function says."""
        texts = {WorkflowName(row["tenant_id"], row["workflow_id"]): row for row in self.service.rows("workflow_data")}
        for name, each in self.workflows.items():
            assert not each.is_open, f"{each} has not ended"
            if each.status == "completed" or each.code in {"STEP_FAILED", "WORKFLOW_ERROR"}:
                assert each.definition is not None
                stored = results_of(self.service, name.workflow)
                expected = expect(self.service.loop, each.definition["input"]["program"], stored)
                assert expected.is_over, f"{each} has ended, although its function has not"
                row = texts[name]
                error = None if row["error"] is None else json.loads(row["error"])["message"]
                result = None if row["result"] is None else json.loads(row["result"])
                assert (result, error) == (expected.result, expected.error), f"{each} ended with {dict(row)}"
                step = json.loads(each.events[-1][1])[1] if each.code else None
                assert step == expected.step

    def check_events(self) -> None:
        """Assert that exactly the expected events were published, each once and with its own id."""
        events = [each for each in self.service.events() if each["type"] in _EVENTS]
        found = Counter(map(_read_event, events))
        wanted = Counter((name, *event) for name, each in self.workflows.items() for event in each.events)
        assert found == wanted, f"missing {wanted - found}, too many {found - wanted}"
        assert len({event["id"] for event in events}) == len(events)


def _is_touched(workflow: WorkflowModel, row: Row) -> bool:
    """Return whether a pass of the dispatcher changed a workflow."""
    found = (row["status"], row["lease_token"], row["available_at"])
    return found != (workflow.status, workflow.token, workflow.available)


def _effect_key(row: Row) -> str:
    return f"{row['name']}:{row['n']}" if row["n"] else str(row["name"])


def _effect(row: Row) -> EffectModel:
    result = None if row["result"] is None else json.loads(row["result"])
    return EffectModel(row["kind"], row["due_at"], row["status"], row["seq"], row["failures"], result)


def _position(row: Row) -> Position:
    return Position(row["position_epoch"], row["position_sequence"])


def _retry_at(rows: Mapping[tuple[WorkflowName, str], Row], name: WorkflowName) -> Callable[[str], int]:
    """Return what returns the instant that the service has stored for a failed step."""

    def read(key: str) -> int:
        assert (name, key) in rows, f"the failure of {key} of {name} was not stored"
        return rows[name, key]["due_at"] or 0

    return read


def _no_retry(key: str) -> int:
    raise AssertionError(f"no step has failed, but {key} has an instant")


def _read_reply(reply: Payload | RawJson | Rejection) -> Any:
    return json.loads(encode_answer(reply).body)


def _in_ms(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a StartWorkflow with its durations in milliseconds."""
    durations = {name: int(fields[name][2:-1]) * 1000 for name in ("startIn", "deadlineIn") if name in fields}
    return {**fields, **durations}


def _read_event(event: Mapping[str, Any]) -> tuple[WorkflowName, str, Any]:
    payload = event["payload"]
    name = WorkflowName(payload["tenantId"], payload["workflowId"])
    match event["type"]:
        case "WorkflowCompleted":
            about = payload.get("result")
        case "WorkflowFailed":
            about = (payload["code"], payload.get("step"), payload.get("error", {}).get("message"))
        case "WorkflowCancelled":
            about = payload.get("reason")
        case _:
            return name, event["type"], payload["error"]
    return name, event["type"], json.dumps(about)
