"""Attacks with valid commands: many, costly, or large."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.harness.attacks.attack import LONG_AFTER, LONG_AGO, Attack, address, body, commands, flood, numbered
from tests.harness.raw_nats import RawMessage, header_block

LARGE = "x" * 60_000
_TO_INBOX = b"Timer-Reply-To: _INBOX.tenant-a.NUMBER"
_Jobs = Sequence[Mapping[str, Any]]
_BLOCKED = {"kind": "work_item.status.transition", "to": ["blocked"]}


def _timer(call: str, due_at: str = LONG_AFTER, **fields: Any) -> tuple[str, Mapping[str, Any]]:
    return "ScheduleTimer", {"serviceCallId": call, "dueAt": due_at, **fields}


def _cancel(call: str) -> tuple[str, Mapping[str, Any]]:
    return "CancelTimer", {"serviceCallId": call}


def run(name: str, jobs: _Jobs, **fields: Any) -> tuple[str, Mapping[str, Any]]:
    """Return a StartRun."""
    return "StartRun", {"runId": name, "jobs": jobs, **fields}


def report(run: str, job: str, status: str = "success", **fields: Any) -> tuple[str, Mapping[str, Any]]:
    """Return a ReportJobStatus."""
    return "ReportJobStatus", {"runId": run, "jobName": job, "status": status, **fields}


def _signal(signal: str, **fields: Any) -> tuple[str, Mapping[str, Any]]:
    return "CreateWorkSignal", {"signalId": signal, "triggerKind": "event", "triggerSpec": _BLOCKED, **fields}


def _prepared(*made: tuple[str, Mapping[str, Any]]) -> list[RawMessage]:
    return [RawMessage(address(kind), body(kind, payload)) for kind, payload in made]


def in_blocks(*made: tuple[str, Mapping[str, Any]]) -> Attack:
    """Return the attack that sends the same commands in each block. `NUMBER` is the number of the block."""
    messages = _prepared(*made)
    return Attack(
        lambda number: b"".join(numbered(each, number).encode() for each in messages), len(messages), connections=1
    )


def _many_statuses(count: int, item: str) -> list[RawMessage]:
    """Return 500 signals with triggers of so many statuses. More than 100 are invalid."""
    spec = {"kind": "work_item.status.transition", "to": [f"{n:x}" for n in range(count)]}
    return _prepared(*(_signal(f"{count}-{n}", workItemId=item, triggerSpec=spec) for n in range(500)))


def gated(group: int) -> _Jobs:
    """Return 16 jobs with large payloads that need one job."""
    return [{"name": f"job-{group}-{n}", "needs": ["first"], "payload": LARGE} for n in range(16)]


STAR: _Jobs = [
    {"name": "job-0"},
    *({"name": f"job-{number}", "needs": ["job-0"]} for number in range(1, 10_000)),
]
"""As many jobs as a run can have."""
LAYERS: _Jobs = [{"name": f"top-{number}"} for number in range(310)] + [
    {"name": f"bottom-{number}", "needs": [f"top-{each}" for each in range(310)]} for number in range(310)
]
"""Nearly as many needs as a run can have."""
WIDE: _Jobs = [{"name": f"{number}"} for number in range(9_990)] + [
    {"name": f"wide-{number}", "needs": [f"{each}" for each in range(9_990)]} for number in range(10)
]
"""Jobs with as many needs as a job can have."""
_SMALL: _Jobs = [
    {"name": "first"},
    {"name": "second"},
    {"name": "last", "needs": ["first", "second"]},
]
_CHAIN: _Jobs = [
    {"name": "job-0"},
    *({"name": f"job-{n}", "needs": [f"job-{n - 1}"]} for n in range(1, 10_000)),
]
_LONG_NAMES = [f"{number:03}".ljust(200, "\U0001f525") for number in range(800)]
"""Names of as many bytes as a name can have."""
_LONG_LAYERS: _Jobs = [{"name": f"{number:x}"} for number in range(150)] + [
    {"name": name, "needs": [f"{each:x}" for each in range(150)]} for name in _LONG_NAMES[:600]
]
_LONG_WAITING: _Jobs = [{"name": name, "needs": [{"group": "group"}]} for name in _LONG_NAMES[:640]]
_LONG_MEMBERS: _Jobs = [{"name": name} for name in _LONG_NAMES[640:795]]
_LONG_RUN = "\U0001f525" * 190 + "NUMBER"
"""An id of as many bytes as an id can have."""
_GROUPS = [f"{number:x}" for number in range(1_000)]
_LONG_GROUP_NEEDS: _Jobs = [{"name": name, "needs": [{"group": each} for each in _GROUPS]} for name in _LONG_NAMES[:52]]
_MANY_NAMES = [f"{number:x}" for number in range(9_000)]
_MEDIUM_LAYERS: _Jobs = [{"name": f"{number:x}"} for number in range(100)] + [
    {"name": f"job-{number}", "needs": [f"{each:x}" for each in range(100)]} for number in range(95)
]
FAN: _Jobs = [
    {"name": "first"},
    *({"name": f"job-{number}", "needs": ["first"]} for number in range(1_000)),
]

_EIGHT: _Jobs = [
    {"name": "last"},
    *({"name": f"output-{n}"} for n in range(8)),
    *({"name": f"job-{n}", "needs": ["last", *(f"output-{each}" for each in range(8))]} for n in range(2_000)),
]
COMMANDS: Mapping[str, Attack] = {
    "timers": commands(_timer("call-NUMBER")),
    "timers whose outcomes are sent": commands(_timer("call-NUMBER"), headers=header_block(_TO_INBOX)),
    "timers that are due": commands(_timer("call-NUMBER", LONG_AGO)),
    "timers that are due at one instant": commands(_timer("call-NUMBER", "SOON")),
    "timers with much data": commands(_timer("call-NUMBER", data=LARGE), size=20),
    "due timers with much data": commands(_timer("call-NUMBER", LONG_AGO, data=LARGE), size=20),
    "timers with long ids": commands(_timer("\U0001f525" * 185 + "NUMBER")),
    "timers with long traces": commands(
        _timer("call-NUMBER", LONG_AGO),
        headers=header_block(b"traceparent: 00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01", b"tracestate: " + b"x" * 500),
    ),
    "one timer again and again": commands(
        _timer("call", data="NUMBER"), _timer("call", "2101-01-01T00:00:00Z", data="NUMBER")
    ),
    "one timer again and again, due": commands(_timer("call", LONG_AGO, data="NUMBER")),
    "timers and their cancels": commands(_timer("call"), _cancel("call")),
    "cancels of unknown timers": commands(_cancel("call-NUMBER")),
    "retries": commands(("RetryTimer", {"serviceCallId": "call-NUMBER"}), ("RetryEvent", {"eventId": "event-NUMBER"})),
    "retries of a timer with much data, whose outcomes are sent": commands(
        ("RetryTimer", {"serviceCallId": "call"}),
        headers=header_block(_TO_INBOX),
        prepare=_prepared(_timer("call", data=LARGE)),
    ),
    "small runs": commands(run("run-NUMBER", _SMALL)),
    "runs of 10,000 jobs": commands(run("run-NUMBER", STAR), size=2),
    "runs that are a chain": commands(run("run-NUMBER", _CHAIN), size=2),
    "runs of 96,100 needs": commands(run("run-NUMBER", LAYERS), size=2),
    "runs with large payloads": commands(
        run("run-NUMBER", [{"name": f"job-{n}", "payload": LARGE} for n in range(16)]), size=2
    ),
    "runs and their cancels": commands(run("run-NUMBER", STAR), ("CancelRun", {"runId": "run-NUMBER"}), size=2),
    "a large output for 1,000 jobs": commands(
        run("run-NUMBER", FAN), report("run-NUMBER", "first", outputs={"log": LARGE}), size=2
    ),
    "a large output for 250 jobs": commands(
        run("run-NUMBER", FAN[:251]), report("run-NUMBER", "first", outputs={"log": LARGE}), size=2
    ),
    "a small output for 9,999 jobs": commands(
        run("run-NUMBER", STAR), report("run-NUMBER", "job-0", outputs={"log": 1}), size=2
    ),
    "payloads of 500 jobs": in_blocks(
        run("run-NUMBER", [{"name": "first"}], groups=[f"g{n}" for n in range(32)]),
        *(("ResolveGroup", {"runId": "run-NUMBER", "groupName": f"g{n}", "jobs": gated(n)}) for n in range(32)),
        report("run-NUMBER", "first"),
    ),
    "runs that are stale at once": commands(
        run("run-NUMBER", [{"name": "job-0", "staleAfterSeconds": 1}, *STAR[1:]]), size=2
    ),
    "outputs of eight jobs for 2,000 jobs": in_blocks(
        run("run-NUMBER", _EIGHT),
        *(report("run-NUMBER", f"output-{n}", outputs={"log": LARGE}) for n in range(8)),
        report("run-NUMBER", "last"),
    ),
    "reports that drop 9,999 jobs": commands(
        run("run-NUMBER", STAR),
        report("run-NUMBER", "job-0", droppedJobs=[f"job-{number}" for number in range(1, 10_000)]),
        size=2,
    ),
    "small runs that are stale at once": commands(run("run-NUMBER", [{"name": "job", "staleAfterSeconds": 1}])),
    "runs of many needs with long names": commands(run("run-NUMBER", _LONG_LAYERS), size=2),
    "groups of many needs with long names": commands(
        run("run-NUMBER", _LONG_WAITING, groups=["group"]),
        ("ResolveGroup", {"runId": "run-NUMBER", "groupName": "group", "jobs": _LONG_MEMBERS}),
        size=2,
    ),
    "needs of groups with long names": commands(run(_LONG_RUN, _LONG_GROUP_NEEDS, groups=_GROUPS), size=2),
    "runs with a long id": commands(run(_LONG_RUN, STAR), size=2),
    "runs with a long id, nearly too large": commands(run(_LONG_RUN, STAR[:3_500]), size=2),
    "runs of nearly 64 KiB": commands(run("run-NUMBER", _MEDIUM_LAYERS), size=20),
    "small timers in large messages": flood(
        RawMessage(address("ScheduleTimer"), body(*_timer("call-NUMBER")).ljust(70_000)), size=20
    ),
    "reports of one run": commands(
        report("run", "job-0", "running"),
        report("run", "job-1", "failed", outputs={"log": "NUMBER"}),
        prepare=_prepared(run("run", STAR)),
    ),
    "early reports": commands(report("unknown", "job-NUMBER", outputs={"log": LARGE}), size=20),
    "early reports of 9,990 jobs and their start": in_blocks(
        *(report("run-NUMBER", f"job-{n}", "failed") for n in range(9_990)), run("run-NUMBER", STAR)
    ),
    "early reports of many runs": commands(report("run-NUMBER", "job")),
    "early groups": commands(
        ("ResolveGroup", {"runId": "run-NUMBER", "groupName": "group", "jobs": [{"name": f"{n}"} for n in range(500)]}),
        size=20,
    ),
    "early reports that name many jobs of many groups": in_blocks(
        *(report("run-NUMBER", f"late-{n}", "running", droppedJobs=[*_GROUPS[:990], *_MANY_NAMES]) for n in range(5)),
        run("run-NUMBER", [], groups=[f"g{n}" for n in range(1_000)]),
        *(
            ("ResolveGroup", {"runId": "run-NUMBER", "groupName": f"g{n}", "jobs": [{"name": f"{n:x}"}]})
            for n in range(990)
        ),
    ),
    "cancels of unknown runs": commands(("CancelRun", {"runId": "run-NUMBER"})),
    "groups of one run": commands(
        *(("ResolveGroup", {"runId": "run", "groupName": f"g{n}", "jobs": [{"name": f"j{n}"}]}) for n in range(1_000)),
        prepare=_prepared(run("run", STAR[:8_000], groups=[f"g{number}" for number in range(1_000)])),
    ),
    "signals": commands(_signal("signal-NUMBER", workItemId="item-NUMBER")),
    "signals of one work item": commands(
        _signal("signal-NUMBER", workItemId="item"),
        ("TransitionWorkItem", {"workItemId": "item", "to": "blocked"}),
        ("TransitionWorkItem", {"workItemId": "item", "to": "doing"}),
    ),
    "signals with many statuses": commands(
        ("TransitionWorkItem", {"workItemId": "item", "to": "status-NUMBER"}),
        prepare=[*_many_statuses(100, "item"), *_many_statuses(6_000, "item")],
    ),
    "signals by time": commands(
        _signal("signal-NUMBER", triggerKind="time", triggerSpec={"kind": "time.at", "at": LONG_AGO}, note="x" * 1_900)
    ),
    "signals that are paused and activated": commands(
        ("PauseWorkSignal", {"signalId": "signal"}),
        ("ActivateWorkSignal", {"signalId": "signal"}),
        ("TransitionWorkItem", {"workItemId": "item", "to": "blocked"}),
        prepare=_prepared(_signal("signal", workItemId="item")),
    ),
    "every kind of command, unknown ids": commands(
        *(
            (kind, {"signalId": "signal-NUMBER"})
            for kind in ("CancelWorkSignal", "ResolveWorkSignal", "PauseWorkSignal", "ActivateWorkSignal")
        ),
        ("CreateWorkItem", {"workItemId": "item-NUMBER", "status": "new"}),
        ("TransitionWorkItem", {"workItemId": "item-NUMBER", "to": "blocked"}),
        ("CancelRun", {"runId": "run-NUMBER"}),
        _cancel("call-NUMBER"),
    ),
}
