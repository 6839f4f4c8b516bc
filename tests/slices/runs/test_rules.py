"""The rules of runs, and their agreement with the reference evaluator."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.clock import NOW
from tests.harness.reference_evaluator import Edges, evaluate_from_scratch
from timer_service.core.events.cause import Cause
from timer_service.core.values.message import Command, Position, Trace
from timer_service.runs import rules
from timer_service.runs.draft import Draft, RunState
from timer_service.runs.graph import (
    AddedEdges,
    Edge,
    build_edges,
    check_names,
    check_size,
    find_cycle,
)
from timer_service.runs.messages import (
    MAX_JOBS,
    MAX_NEEDS,
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
from timer_service.runs.stored_bytes import count_jobs

RUN = Run(RunKey("acme", "run-1"), RunStatus.RUNNING, Position(1, 1), NOW)
ENDS = [JobStatus.SUCCESS, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.DRIFT_DROPPED, JobStatus.TIMED_OUT_STALE]


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
    downstream = {name: [edge for edge in edges if edge.upstream == name] for name in names}
    draft = Draft(RunState(RUN, {name: Job(name) for name in names}, downstream, {}, {}, {}), NOW, evaluating=True)
    draft.repair()
    return draft


def ready_and_skipped(draft: Draft) -> tuple[set[str], set[str]]:
    jobs = draft.jobs.values()
    ready = {job.name for job in jobs if job.ready_at is not None and not job.ended}
    return ready, {job.name for job in jobs if job.status is JobStatus.SKIPPED}


@settings(max_examples=150, deadline=None)
@given(graphs(), st.data())
def test_agrees_with_the_reference_evaluator(edges: Edges, data: st.DataObject) -> None:
    """In any order in which jobs end, the ready and skipped jobs equal those of an evaluation from scratch."""
    draft = evaluated_draft(edges)
    ended: dict[str, JobStatus] = {}
    while running := sorted(ready_and_skipped(draft)[0]):
        assert ready_and_skipped(draft) == evaluate_from_scratch(draft.jobs.keys(), edges, ended)
        name = data.draw(st.sampled_from(running))
        ended[name] = data.draw(st.sampled_from(ENDS))
        draft.set_job(rules.end(draft.jobs[name], ended[name], NOW))
        draft.evaluate([name])
    assert ready_and_skipped(draft) == evaluate_from_scratch(draft.jobs.keys(), edges, ended)
    assert all(job.ended for job in draft.jobs.values())
    assert draft.run.open_jobs == 0
    assert draft.run.failed_jobs == sum(status is not JobStatus.SUCCESS for status in ended.values())


@settings(max_examples=100, deadline=None)
@given(graphs(), st.data())
def test_repair_of_a_sound_run_changes_nothing(edges: Edges, data: st.DataObject) -> None:
    """A recount of all needs gives the stored counts after every change of a run."""
    draft = evaluated_draft(edges)
    for _ in range(data.draw(st.integers(0, len(draft.jobs)))):
        if not (running := sorted(ready_and_skipped(draft)[0])):
            break
        name = data.draw(st.sampled_from(running))
        draft.set_job(rules.end(draft.jobs[name], data.draw(st.sampled_from(ENDS)), NOW))
        draft.evaluate([name])
    before = draft.finish()
    jobs, run = dict(before.jobs), draft.run
    draft.now = NOW + 1
    assert draft.repair() == []
    assert (draft.jobs, draft.run) == (jobs, run)


REPORTED = Job("job", JobStatus.RUNNING, ready_at=NOW)
ENDED = REPORTED._replace(status=JobStatus.FAILED)


@pytest.mark.parametrize(
    ("job", "status", "outcome", "then"),
    [
        (REPORTED, "running", Outcome.RECORDED, "running"),
        (REPORTED, "dispatched", Outcome.RECORDED, "dispatched"),
        (REPORTED, "failed", Outcome.RECORDED, "failed"),
        (ENDED, "failed", Outcome.UNCHANGED, "failed"),
        (ENDED, "success", Outcome.ALREADY_ENDED, "failed"),
        (ENDED, "running", Outcome.ALREADY_ENDED, "failed"),
        (Job("job"), "running", Outcome.IGNORED_NOT_READY, "pending"),
        (Job("job"), "success", Outcome.IGNORED_NOT_READY, "pending"),
        (Job("job"), "drift_dropped", Outcome.RECORDED, "drift_dropped"),
    ],
)
def test_report(job: Job, status: str, outcome: Outcome, then: str) -> None:
    """An end is final. A waiting job accepts neither running nor success."""
    found, after = rules.apply_report(job, JobStatus(status), NOW)
    assert (found, after.status) == (outcome, then)


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
    return [Edge(pair[0], pair[1], IfFailed.SKIP) for pair in pairs]


def test_cycle() -> None:
    """The first command that closes a cycle is found. The path of the cycle starts and ends with the same job."""
    additions = [AddedEdges(Position(1, place), edges(pair)) for place, pair in enumerate(("bc", "ca", "cb"), 2)]
    found = find_cycle(edges("ab"), additions)
    assert found is not None
    position, flaw = found
    assert (position, flaw.code) == (Position(1, 3), FlawCode.CYCLE)
    assert (len(flaw.path), flaw.path[0], set(flaw.path)) == (4, flaw.path[-1], {"a", "b", "c"})
    assert find_cycle(edges("ab"), additions[:1]) is None


def test_unresolved_group_closes_no_cycle() -> None:
    """A need of an unresolved group closes no cycle, even if the group has the name of a job."""
    needs = [NewJob(name="tests", needs=[GroupNeed(group="tests")]), NewJob(name="b", needs=["tests"])]
    to_jobs, to_groups = build_edges(needs, {})
    assert (to_jobs, to_groups) == (edges(("tests", "b")), edges(("tests", "tests")))
    assert find_cycle([], [AddedEdges(Position(1, 1), to_jobs)]) is None


def test_skip_wins_if_a_job_is_needed_twice() -> None:
    """A job that is needed by name and as a member of a group has one edge, and `skip` wins over `run`."""
    needs: list[JobNeed | GroupNeed] = [
        JobNeed(job="a", if_failed=IfFailed.SKIP),
        GroupNeed(group="g", if_failed=IfFailed.RUN),
    ]
    found, _ = build_edges([NewJob(name="b", needs=needs)], {"g": ["a", "c"]})
    assert found == [Edge("a", "b", IfFailed.SKIP), Edge("c", "b", IfFailed.RUN)]


def test_unknown_and_duplicate_names() -> None:
    """An unknown need is reported with the job that needs it, and a duplicate job with its name."""
    assert check_names([NewJob(name="b", needs=["a"])], (), ()) == (FlawCode.UNKNOWN_UPSTREAM, ["b", "a"])
    assert check_names([NewJob(name="b")], ("b",), ()) == (FlawCode.DUPLICATE_JOB, ["b"])


def test_size_limits() -> None:
    """A run is too large from the job that exceeds a limit. A need of a group counts once for each member."""
    new = [NewJob(name=f"new-{number}", needs=[GroupNeed(group="g")]) for number in range(3)]
    members = {"g": ["member"] * 40_000}
    assert check_size(new[:2], members, (), jobs=1, needs=20_000) is None
    assert check_size(new[:2], members, (), jobs=1, needs=20_001) == (FlawCode.TOO_LARGE, ["new-1"])
    assert check_size(new, members, (), jobs=1, needs=0) == (FlawCode.TOO_LARGE, ["new-2"])
    assert check_size(new, {}, (), jobs=MAX_JOBS - 3, needs=0) is None
    assert check_size(new, {}, (), jobs=MAX_JOBS - 2, needs=0) == (FlawCode.TOO_LARGE, ["new-2"])
    waiting = [Edge("g", f"waiting-{number}", IfFailed.SKIP) for number in range(2)]
    assert check_size(new, {}, waiting, jobs=1, needs=MAX_NEEDS - 9) is None
    assert check_size(new, {}, waiting, jobs=1, needs=MAX_NEEDS - 5) == (FlawCode.TOO_LARGE, ["waiting-1"])
    assert check_size(new, {}, waiting, jobs=1, needs=MAX_NEEDS - 8) == (FlawCode.TOO_LARGE, ["new-2"])


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
    edges = [Edge("g", name, IfFailed.SKIP) for name in waiting]
    run = Run(RunKey("acme", "run"), None, Position(1, 1), NOW, cause=Cause("id", None, Trace("abc")))
    fits, is_too_much = (
        count_jobs(run._replace(stored_bytes=MAX_STORED_BYTES - size + more), [new], members, edges, None)
        for more in (0, 1)
    )
    assert fits == run._replace(stored_bytes=MAX_STORED_BYTES)
    assert is_too_much == (FlawCode.TOO_LARGE, [new.name])


def test_names_of_groups_are_found_without_a_search() -> None:
    """The check of names looks up the groups of a command in a set: 47,000 needs of 1,000 groups took 180 ms."""

    class Groups(list[str]):
        def __contains__(self, _: object) -> bool:
            raise AssertionError("the list is searched for each need")

    assert check_names([NewJob(name="b", needs=[GroupNeed(group="g")])], (), Groups(["f", "g"])) is None


def test_group_that_makes_a_run_too_large() -> None:
    """A group of 200 jobs that 9,800 jobs need is too large, because there would be 1,960,000 needs."""
    before = RunState(Run(RunKey("acme", "run-1"), None, rules.NO_POSITION, NOW), {}, {}, {}, {}, {})
    jobs = [NewJob(name=f"job-{number}", needs=[GroupNeed(group="g")]) for number in range(MAX_JOBS - 200)]
    start = StartRun(tenant_id="acme", run_id="run-1", jobs=jobs, groups=["g"])
    resolve = ResolveGroup(
        tenant_id="acme", run_id="run-1", group_name="g", jobs=[NewJob(name=f"of-g-{number}") for number in range(200)]
    )
    commands = [
        Command(f"cmd-{place}", payload, Position(1, place), None, Trace(), None)
        for place, payload in enumerate((start, resolve), 1)
    ]
    after, outcomes = apply(before, commands, NOW, evaluating=True)
    first_too_many = (MAX_NEEDS - len(jobs)) // 200
    assert outcomes == [Outcome.STARTED, Outcome.RUN_REJECTED]
    assert (after.run.flaw_code, after.run.flaw_path) == (FlawCode.TOO_LARGE, f'["job-{first_too_many}"]')
    assert all(job.status is JobStatus.CANCELLED for job in after.jobs.values())


@pytest.mark.slow
def test_needs_of_unresolved_groups_count() -> None:
    """A need of an unresolved group counts towards the limit."""
    groups = [f"{number}" for number in range(50)]
    count = MAX_NEEDS // len(groups) // 2
    first, second = (
        [NewJob(name=f"{half}{number}", needs=[GroupNeed(group=each) for each in groups]) for number in range(count)]
        for half in "ab"
    )
    start = StartRun(tenant_id="acme", run_id="run-1", jobs=first, groups=[*groups, "more"])
    one_more = NewJob(name="one more", needs=[GroupNeed(group="0")])
    outcomes = []
    for jobs in (second, [*second, one_more]):
        resolve = ResolveGroup(tenant_id="acme", run_id="run-1", group_name="more", jobs=jobs)
        commands = [
            Command(f"cmd-{place}", payload, Position(1, place), None, Trace(), None)
            for place, payload in enumerate((start, resolve), 1)
        ]
        before = RunState(Run(RunKey("acme", "run-1"), None, rules.NO_POSITION, NOW), {}, {}, {}, {}, {})
        outcomes.append(apply(before, commands, NOW, evaluating=True)[1])
    assert outcomes == [[Outcome.STARTED, Outcome.RESOLVED], [Outcome.STARTED, Outcome.RUN_REJECTED]]
