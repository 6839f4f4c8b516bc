"""The rules of runs, and their agreement with the reference evaluator."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.clock import NOW
from tests.harness.reference_evaluator import Edges, evaluate_from_scratch
from timer_service.core.events.cause import Cause
from timer_service.core.values.message import Command, Position, TenantPayload, Trace
from timer_service.runs import rules
from timer_service.runs.draft import Draft, RunState
from timer_service.runs.graph import (
    Edge,
    build_edges,
    by_upstream,
    find_cycle,
    read_needed_by,
    read_needs,
    write_needed_by,
    write_needs,
)
from timer_service.runs.messages import (
    MAX_JOBS,
    MAX_NEEDS,
    MAX_PAYLOAD_BYTES,
    MAX_STORED_BYTES,
    FlawCode,
    GroupNeed,
    IfFailed,
    JobNeed,
    JobStatus,
    NewJob,
    ResolveGroup,
    RunStatus,
    StartRun,
)
from timer_service.runs.rules import Job, Outcome, Run, RunKey
from timer_service.runs.run import apply
from timer_service.runs.size import bytes_of_groups, count_jobs

RUN = Run(RunKey("acme", "run-1"), RunStatus.RUNNING, Position(1, 1), NOW)
ENDS = [JobStatus.SUCCESS, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.DRIFT_DROPPED, JobStatus.TIMED_OUT_STALE]
SKIP, RUN_ANYWAY = IfFailed.SKIP, IfFailed.RUN


@st.composite
def graphs(draw: st.DrawFn) -> Edges:
    """Draw edges between numbered jobs. Each edge leads from a lower to a higher number, so there is no cycle."""
    size = draw(st.integers(2, 9))
    pairs = [(upstream, job) for job in range(size) for upstream in range(job)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=20))
    return [Edge(f"{upstream}", f"{job}", draw(st.sampled_from(IfFailed))) for upstream, job in chosen]


def evaluated_draft(edges: Edges) -> Draft:
    """Return the draft of a run with these edges, evaluated."""
    names = sorted({name for edge in edges for name in edge[:2]})
    jobs = {name: Job(name) for name in names}
    draft = Draft(RunState(RUN, jobs, by_upstream(edges), {}, {}, {}), NOW, evaluating=True)
    draft.repair()
    return draft


def ready_and_skipped(draft: Draft) -> tuple[set[str], set[str]]:
    jobs = draft.jobs.values()
    ready = {job.name for job in jobs if job.ready_at is not None and not job.ended}
    return ready, {job.name for job in jobs if job.status is JobStatus.SKIPPED}


@settings(max_examples=150, deadline=None)
@given(graphs(), st.data())
def test_agrees_with_the_reference_evaluator(edges: Edges, data: st.DataObject) -> None:
    """In any order in which jobs end, the ready and skipped jobs equal those of an evaluation from scratch.

    A recount of all needs changes nothing.
    """
    draft = evaluated_draft(edges)
    ended: dict[str, JobStatus] = {}
    while running := sorted(ready_and_skipped(draft)[0]):
        assert ready_and_skipped(draft) == evaluate_from_scratch(draft.jobs.keys(), edges, ended)
        before = dict(draft.jobs), draft.run
        assert draft.repair() == []
        assert (draft.jobs, draft.run) == before
        name = data.draw(st.sampled_from(running))
        ended[name] = data.draw(st.sampled_from(ENDS))
        draft.set_job(rules.end(draft.jobs[name], ended[name], NOW))
        draft.evaluate([name], caused_by=None)
    assert ready_and_skipped(draft) == evaluate_from_scratch(draft.jobs.keys(), edges, ended)
    assert all(job.ended for job in draft.jobs.values())
    assert draft.run.open_jobs == 0
    assert draft.run.failed_jobs == sum(status is not JobStatus.SUCCESS for status in ended.values())


@pytest.mark.parametrize(
    ("statuses", "run"),
    [
        ([], "success"),
        (["success", "skipped"], "success"),
        (["success", "failed", "skipped"], "failed"),
        (["timed_out_stale"], "failed"),
        (["drift_dropped"], "failed"),
        (["cancelled"], "failed"),
    ],
)
def test_how_a_run_ends(statuses: list[str], run: str) -> None:
    """A run fails if one of its jobs fails. A skipped job is not a failure."""
    jobs = {str(number): Job(str(number), JobStatus.RUNNING, ready_at=NOW) for number in range(len(statuses))}
    draft = Draft(RunState(RUN._replace(open_jobs=len(jobs)), jobs, {}, {}, {}, {}), NOW, evaluating=True)
    for number, status in enumerate(statuses):
        draft.set_job(rules.end(jobs[str(number)], JobStatus(status), NOW))
    assert draft.finish().run.status == run


def edges(*pairs: Sequence[str]) -> list[Edge]:
    """Return one edge for each pair of upstream and job."""
    return [Edge(pair[0], pair[1], SKIP) for pair in pairs]


@pytest.mark.parametrize("known", [["ab", "bc"], []])
def test_cycle(known: list[str]) -> None:
    """The path of a cycle starts and ends with the same job. Each job is needed by the next one."""
    added = [each for each in ("ab", "bc", "ca", "cd") if each not in known]
    flaw = find_cycle("abc" if not known else "c", by_upstream(edges(*known)), by_upstream(edges(*added)))
    assert flaw is not None
    assert (flaw.code, len(flaw.path), flaw.path[0]) == (FlawCode.CYCLE, 4, flaw.path[-1])
    assert {"".join(pair) for pair in zip(flaw.path, flaw.path[1:], strict=False)} == {"ab", "bc", "ca"}
    assert find_cycle("abcd", {}, by_upstream(edges("ab", "bc", "ac", "cd"))) is None


def test_large_cycle() -> None:
    """The path of a cycle has at most 100 names."""
    names = [f"{number}" for number in range(150)]
    flaw = find_cycle(names, {}, by_upstream(edges(*zip(names, [*names[1:], "0"], strict=True))))
    assert flaw is not None
    assert len(flaw.path) == 100


def commands_of(*payloads: TenantPayload) -> list[Command]:
    return [
        Command("cmd", payload, Position(1, place), None, Trace(), None) for place, payload in enumerate(payloads, 1)
    ]


def new_run() -> RunState:
    return RunState(Run(RunKey("acme", "run-1"), None, rules.NO_POSITION, NOW), {}, {}, {}, {}, {})


def resolve(group: str, *jobs: NewJob) -> ResolveGroup:
    return ResolveGroup(tenant_id="acme", run_id="run-1", group_name=group, jobs=list(jobs))


def test_only_the_group_that_closes_a_cycle_rejects() -> None:
    """In one batch, only the ResolveGroup that closes a cycle rejects the run. Earlier ones end as resolved."""
    first = NewJob(name="a", needs=[GroupNeed(group="1")])
    start = StartRun(tenant_id="acme", run_id="run-1", jobs=[first], groups=["0", "1", "2"])
    groups = [resolve(f"{number}", NewJob(name=f"m{number}", needs=["a"])) for number in range(3)]
    after, outcomes = apply(new_run(), commands_of(start, *groups), NOW, evaluating=True)
    assert outcomes == [Outcome.STARTED, Outcome.RESOLVED, Outcome.RUN_REJECTED, Outcome.ALREADY_ENDED]
    assert (set(after.jobs), str(after.run.flaw_code)) == ({"a", "m0"}, "CYCLE")


def test_unresolved_group_closes_no_cycle() -> None:
    """A need of an unresolved group closes no cycle, even if the group has the name of a job. One job can need both."""
    of_group = GroupNeed(group="tests")
    needs = [NewJob(name="tests", needs=[of_group]), NewJob(name="b", needs=["tests", of_group])]
    assert build_edges(needs, {}) == (edges(("tests", "b")), edges(("tests", "tests"), ("tests", "b")))


def test_skip_wins_if_a_job_is_needed_twice() -> None:
    """A job that is needed by name and as a member of a group has one edge, and `skip` wins over `run`."""
    for by_name, of_group in ((SKIP, RUN_ANYWAY), (RUN_ANYWAY, SKIP)):
        needs: list[JobNeed | GroupNeed] = [
            JobNeed(job="a", if_failed=by_name),
            GroupNeed(group="g", if_failed=of_group),
        ]
        found, _ = build_edges([NewJob(name="b", needs=needs)], {"g": ["a", "c"]})
        assert found == [Edge("a", "b", SKIP), Edge("c", "b", of_group)]


def test_edges_are_read_as_they_were_written() -> None:
    """The stored JSON has each edge, from either end. A job without edges has none."""
    down = [Edge("a", "c", RUN_ANYWAY), Edge("a", 'b"\u00e9', SKIP)]
    up = [Edge("c", "d", SKIP), Edge("a", "d", RUN_ANYWAY), Edge("b", "d", SKIP)]
    assert sorted(read_needed_by("a", write_needed_by(down) or "")) == sorted(down)
    assert read_needs(write_needs(up) or "") == [("a", RUN_ANYWAY), ("b", SKIP), ("c", SKIP)]
    assert (write_needs([]), write_needed_by([])) == (None, None)


IN_GROUP = [NewJob(name=f"new-{number}", needs=[GroupNeed(group="g")]) for number in range(3)]
LARGE_GROUP = {"g": ["member"] * 30_000}
WAITING = [Edge("g", f"waiting-{number}", SKIP) for number in range(2)]


@pytest.mark.parametrize(
    ("members", "downstream", "jobs", "needs", "flaw"),
    [
        (LARGE_GROUP, [], 1, MAX_NEEDS - 90_000, None),
        (LARGE_GROUP, [], 1, MAX_NEEDS - 60_000, "new-2"),
        (LARGE_GROUP, [], 1, MAX_NEEDS - 59_999, "new-1"),
        ({}, [], MAX_JOBS - 3, 0, None),
        ({}, [], MAX_JOBS - 2, 0, "new-2"),
        ({}, WAITING, 1, MAX_NEEDS - 9, None),
        ({}, WAITING, 1, MAX_NEEDS - 5, "waiting-1"),
        ({}, WAITING, 1, MAX_NEEDS - 8, "new-2"),
    ],
)
def test_limits_of_jobs_and_needs(
    members: dict[str, list[str]], downstream: list[Edge], jobs: int, needs: int, flaw: str | None
) -> None:
    """A run is too large from the job that exceeds a limit. A need of a group counts once for each member."""
    found = count_jobs(RUN, IN_GROUP, members, downstream, None, jobs=jobs, needs=needs)
    assert found == (FlawCode.TOO_LARGE, [flaw]) if flaw else isinstance(found, Run)


@pytest.mark.parametrize(
    ("new", "members", "waiting", "size"),
    [
        (NewJob(name="b"), {}, [], 6 * 4 + 5),
        (NewJob(name="b", needs=["aa"]), {}, [], 6 * 4 + 5 + 3),
        (NewJob(name="\U0001f525", needs=["a", "b"]), {}, [], 6 * 7 + 5 + 10),
        (NewJob(name="b", needs=[GroupNeed(group="g")]), {"g": ["aa", "aaa"]}, [], 6 * 4 + 5 + 7),
        (NewJob(name="b", needs=[GroupNeed(group="g")]), {}, [], 6 * 4 + 5 + 2 * 5),
        (NewJob(name="b"), {}, ["cc"], 6 * 4 + 5 + 3),
    ],
)
def test_limit_of_stored_bytes(new: NewJob, members: dict[str, list[str]], waiting: list[str], size: int) -> None:
    """A job counts with the ids that its rows and its event repeat, and a need with the bytes of both names."""
    downstream = [Edge("g", name, SKIP) for name in waiting]
    run = Run(RunKey("acme", "run"), None, Position(1, 1), NOW, cause=Cause("id", None, Trace("abc")))
    fits, is_too_much = (
        count_jobs(
            run._replace(stored_bytes=MAX_STORED_BYTES - size + more), [new], members, downstream, None, jobs=0, needs=0
        )
        for more in (0, 1)
    )
    assert fits == run._replace(stored_bytes=MAX_STORED_BYTES)
    assert isinstance(is_too_much, tuple)
    assert is_too_much[0] == FlawCode.TOO_LARGE


def test_limit_of_payloads() -> None:
    """The payloads of a run have a limit. A null is a payload, too."""
    new = [NewJob(name="a"), NewJob(name="b", payload="x" * 98), NewJob(name="c", payload=None)]
    counted = (
        count_jobs(RUN._replace(payload_bytes=MAX_PAYLOAD_BYTES - room), new, {}, (), None, jobs=0, needs=0)
        for room in (104, 103)
    )
    assert [each.payload_bytes if isinstance(each, Run) else each.path for each in counted] == [
        MAX_PAYLOAD_BYTES,
        ["c"],
    ]
    assert bytes_of_groups("run-1", ["g", "hh"]) == 2 * (5 + 1 + 5 + 2)


def test_group_that_makes_a_run_too_large() -> None:
    """A group of 200 jobs that 9,800 jobs need is too large, because there would be 1,960,000 needs."""
    jobs = [NewJob(name=f"job-{number}", needs=[GroupNeed(group="g")]) for number in range(MAX_JOBS - 200)]
    start = StartRun(tenant_id="acme", run_id="run-1", jobs=jobs, groups=["g"])
    members = resolve("g", *(NewJob(name=f"of-g-{number}") for number in range(200)))
    after, outcomes = apply(new_run(), commands_of(start, members), NOW, evaluating=True)
    first_too_many = (MAX_NEEDS - len(jobs)) // 200
    assert outcomes == [Outcome.STARTED, Outcome.RUN_REJECTED]
    assert (after.run.flaw_code, after.run.flaw_path) == (FlawCode.TOO_LARGE, f'["job-{first_too_many}"]')
    assert all(job.status is JobStatus.CANCELLED for job in after.jobs.values())
