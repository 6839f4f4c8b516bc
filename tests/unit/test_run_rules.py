"""The gate's rules, and that they agree with an evaluator that knows no counters, no parts and no order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.clock import NOW
from tests.support.plain_gate import Edges, plain
from timer_service.core.message import Command, Position, Trace
from timer_service.runs import rules
from timer_service.runs.batch import Batch, Work
from timer_service.runs.checking import check_names, check_order, check_size
from timer_service.runs.edges import edges_of
from timer_service.runs.graph import Graph
from timer_service.runs.messages import (
    MOST_JOBS,
    MOST_NEEDS,
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
from timer_service.runs.rules import Edge, Job, Outcome, Run, RunKey

RUN = Run(RunKey("acme", "run-1"), RunStatus.RUNNING, Position(1, 1), NOW)
ENDS = [JobStatus.SUCCESS, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.DRIFT_DROPPED, JobStatus.TIMED_OUT_STALE]


@st.composite
def graphs(draw: st.DrawFn) -> Edges:
    """Draw edges among jobs that are numbered in an order without cycles."""
    size = draw(st.integers(2, 9))
    pairs = [(upstream, job) for job in range(size) for upstream in range(job)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=20))
    return [Edge(f"{upstream}", f"{job}", draw(st.sampled_from(IfFailed))) for upstream, job in chosen]


def whole(edges: Edges) -> Graph:
    names = sorted({name for edge in edges for name in edge[:2]})
    graph = Graph(RUN._replace(open_jobs=len(names)), {name: Job(name) for name in names})
    for edge in edges:
        graph.downstream[edge.upstream].append(edge)
    graph.evaluate_all(NOW, None)
    return graph


def verdicts(graph: Graph) -> tuple[set[str], set[str]]:
    jobs = graph.jobs.values()
    ready = {job.name for job in jobs if job.ready_at is not None and not job.ended}
    return ready, {job.name for job in jobs if job.status is JobStatus.SKIPPED}


@settings(max_examples=150, deadline=None)
@given(graphs(), st.data())
def test_agrees_with_a_plain_evaluator(edges: Edges, data: st.DataObject) -> None:
    """However jobs end, one after the other, the same are let go and skipped as when everybody is asked anew."""
    graph = whole(edges)
    ended: dict[str, JobStatus] = {}
    while running := sorted(verdicts(graph)[0]):
        assert verdicts(graph) == plain(graph.jobs.keys(), edges, ended)
        name = data.draw(st.sampled_from(running))
        ended[name] = data.draw(st.sampled_from(ENDS))
        graph.put(rules.end(graph.jobs[name], ended[name], NOW))
        graph.evaluate([name], NOW, None)
    assert verdicts(graph) == plain(graph.jobs.keys(), edges, ended)
    assert all(job.ended for job in graph.jobs.values())
    assert graph.run.open_jobs == 0


@settings(max_examples=100, deadline=None)
@given(graphs(), st.data())
def test_evaluating_everything_anew_changes_nothing(edges: Edges, data: st.DataObject) -> None:
    """The counters are those a whole evaluation finds, at every moment of a run."""
    graph = whole(edges)
    for _ in range(data.draw(st.integers(0, len(graph.jobs)))):
        if not (running := sorted(verdicts(graph)[0])):
            break
        name = data.draw(st.sampled_from(running))
        graph.put(rules.end(graph.jobs[name], data.draw(st.sampled_from(ENDS)), NOW))
        graph.evaluate([name], NOW, None)
    jobs, run = dict(graph.jobs), graph.run
    graph.changed.clear()
    graph.evaluate_all(NOW + 1, None)
    assert (graph.jobs, graph.run, graph.changed) == (jobs, run, set())


REPORTED = Job("job", JobStatus.RUNNING, ready_at=NOW, position=Position(1, 5))


@pytest.mark.parametrize(
    ("job", "status", "sequence", "verdict", "then"),
    [
        (REPORTED, "running", 5, Outcome.UNCHANGED, "running"),
        (REPORTED, "dispatched", 4, Outcome.IGNORED_STALE, "running"),
        (REPORTED, "running", 6, Outcome.RECORDED, "running"),
        (REPORTED, "success", 4, Outcome.RECORDED, "success"),
        (REPORTED, "failed", 6, Outcome.RECORDED, "failed"),
        (REPORTED._replace(status=JobStatus.FAILED), "failed", 7, Outcome.UNCHANGED, "failed"),
        (REPORTED._replace(status=JobStatus.FAILED), "success", 7, Outcome.ALREADY_ENDED, "failed"),
        (REPORTED._replace(status=JobStatus.FAILED), "running", 7, Outcome.ALREADY_ENDED, "failed"),
        (Job("job"), "running", 7, Outcome.IGNORED_NOT_READY, "pending"),
        (Job("job"), "success", 7, Outcome.IGNORED_NOT_READY, "pending"),
        (Job("job"), "drift_dropped", 7, Outcome.RECORDED, "drift_dropped"),
    ],
)
def test_report(job: Job, status: str, sequence: int, verdict: Outcome, then: str) -> None:
    """An end is final, in whatever order reports come; nothing is done before the gate has opened."""
    found, after = rules.report(job, JobStatus(status), Position(1, sequence), NOW)
    assert (found, after.status) == (verdict, then)


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
    """A run fails with any of its jobs; one that somebody skipped is no failure."""
    assert rules.completed_as({JobStatus(status): 1 for status in statuses}) == run


def test_cycle_is_told_from_a_group_of_the_same_name() -> None:
    """A job and a group of one name are no cycle; a cycle is told in order, its end its beginning."""
    harmless = edges_of([NewJob(name="tests", needs=[GroupNeed(group="tests")])], {})
    flaw = check_order([Edge("a", "b", IfFailed.SKIP), Edge("b", "c", IfFailed.RUN), Edge("c", "a", IfFailed.SKIP)], [])
    assert check_order(*harmless) is None
    assert flaw is not None
    assert flaw.code is FlawCode.CYCLE
    assert (len(flaw.path), flaw.path[0]) == (4, flaw.path[-1])


def test_skip_wins_where_a_job_is_needed_twice() -> None:
    """A job needed by name and as a member of a group is needed once, over the stricter of both edges."""
    needs: list[JobNeed | GroupNeed] = [
        JobNeed(job="a", if_failed=IfFailed.SKIP),
        GroupNeed(group="g", if_failed="run"),
    ]
    edges, _ = edges_of([NewJob(name="b", needs=needs)], {"g": ["a", "c"]})
    assert edges == [Edge("a", "b", IfFailed.SKIP), Edge("c", "b", IfFailed.RUN)]


def test_unknown_is_no_cycle() -> None:
    """What is not there has a code of its own, and is named with who needs it."""
    assert check_names([NewJob(name="b", needs=["a"])], (), ()) == (FlawCode.UNKNOWN_UPSTREAM, ["b", "a"])
    assert check_names([NewJob(name="b")], ("b",), ()) == (FlawCode.DUPLICATE_JOB, ["b"])


def test_size_is_counted_before_it_is_built() -> None:
    """A run is refused at the job that makes it too large, in jobs or in needs, a group's one for each member."""
    new = [NewJob(name=f"new-{number}", needs=[GroupNeed(group="g")]) for number in range(3)]
    members = {"g": ["member"] * 40_000}
    assert check_size(new[:2], members, (), jobs=1, edges=20_000) is None
    assert check_size(new[:2], members, (), jobs=1, edges=20_001) == (FlawCode.TOO_LARGE, ["new-1"])
    assert check_size(new, members, (), jobs=1, edges=0) == (FlawCode.TOO_LARGE, ["new-2"])
    assert check_size(new, {}, (), jobs=MOST_JOBS - 3, edges=0) is None
    assert check_size(new, {}, (), jobs=MOST_JOBS - 2, edges=0) == (FlawCode.TOO_LARGE, ["new-2"])
    waiting = [Edge("g", f"waiting-{number}", IfFailed.SKIP) for number in range(2)]
    assert check_size(new, {}, waiting, jobs=1, edges=MOST_NEEDS - 6) is None
    assert check_size(new, {}, waiting, jobs=1, edges=MOST_NEEDS - 5) == (FlawCode.TOO_LARGE, ["waiting-1"])


def test_group_that_makes_a_run_too_large() -> None:
    """Where 9,800 jobs wait for a group, the run is rejected once that has 200: that would be 1,960,000 needs."""
    work = Work(Graph(Run(RunKey("acme", "run-1"), None, rules.NOWHERE, NOW)))
    batch = Batch(NOW, evaluating=True, works={work.graph.run.key: work})
    jobs = [NewJob(name=f"job-{number}", needs=[GroupNeed(group="g")]) for number in range(MOST_JOBS - 200)]
    start = StartRun(tenant_id="acme", run_id="run-1", jobs=jobs, groups=["g"])
    resolve = ResolveGroup(
        tenant_id="acme", run_id="run-1", group_name="g", jobs=[NewJob(name=f"of-g-{number}") for number in range(200)]
    )
    verdicts = [
        batch.apply(Command(f"cmd-{place}", payload, Position(1, place), None, Trace(), None))
        for place, payload in enumerate((start, resolve), 1)
    ]
    assert verdicts == [Outcome.STARTED, Outcome.RUN_REJECTED]
    assert work.rejected == (FlawCode.TOO_LARGE, [f"job-{MOST_NEEDS // 200}"])
    assert all(job.status is JobStatus.CANCELLED for job in work.graph.jobs.values())
