"""What the benchmarks send and count without a server: frames of NATS, and jobs of the peers."""

import pytest

from benchmarks.peers.jobs import Execution, drain_figures, fault_figures, in_portions, lag_figures
from benchmarks.processes import BenchmarkError
from benchmarks.sender import count_acknowledged, frame
from benchmarks.stores.filling import Filling, call, insert

DUE = {7: 1000.0, 8: 2000.0}


def test_frame() -> None:
    """A frame has the length of its headers, and the length of headers and body."""
    assert frame("a.b", {"Nats-Msg-Id": "1"}, b"body") == (
        b"HPUB a.b _INBOX.sender 28 32\r\nNATS/1.0\r\nNats-Msg-Id: 1\r\n\r\nbody\r\n"
    )


def test_acknowledgements_are_counted() -> None:
    """Each acknowledgement counts once, and other lines do not."""
    stored = b'{"stream":"TIMER_CMD", "seq":17}'
    assert count_acknowledged([b"INFO {}", b"MSG _INBOX.sender 1 32", stored, b"PING", stored, b""]) == 2


@pytest.mark.parametrize(
    "line",
    [b'{"error":{"code":503},"stream":"TIMER_CMD","seq":0}', b"NATS/1.0 503", b"-ERR 'Permissions Violation'"],
)
def test_a_refused_message_fails(line: bytes) -> None:
    """A message that the broker did not store fails the benchmark, with the reason."""
    with pytest.raises(BenchmarkError, match="not stored"):
        count_acknowledged([line])


def test_rate_of_jobs() -> None:
    """The rate counts the jobs after the first one, until the last one."""
    assert drain_figures([Execution(0, 1000), Execution(2, 3000), Execution(1, 2000)])["jobs_per_second"] == 1


def test_lag_of_jobs() -> None:
    """The lag is that of the jobs with a due time."""
    assert lag_figures([Execution(0, 1), Execution(7, 1004), Execution(8, 2002)], DUE) == {
        "lag_p50_ms": 2,
        "lag_p99_ms": 4,
    }


def test_faults_of_jobs() -> None:
    """Jobs that are missing, executed twice or early are counted."""
    executions = [Execution(0, 1), Execution(0, 2), Execution(7, 999)]
    assert fault_figures(executions, DUE, jobs=2) == {"missing": 2, "duplicate": 1, "early": 1}


async def test_portions() -> None:
    """Jobs are stored so many at a time, and none is left out."""
    stored: list[list[int]] = []

    async def store(some: object) -> None:
        assert isinstance(some, range)
        stored.append(list(some))

    await in_portions(range(5), 2, store)
    assert stored == [[0, 1], [2, 3], [4]]


def test_statement_that_fills_a_database() -> None:
    """A timer that fired has no instant at which it can be claimed, and a waiting one has."""
    waiting = insert("numbers", "WITH", "n", "r", Filling(0, 1, 5000))
    fired = insert("numbers", "WITH", "n", "r", Filling(0, 1, 5000, 6000))
    assert waiting.endswith("NULL, 1, n + 1, 5000 + n FROM numbers")
    assert fired.endswith("6000, 1, n + 1, NULL FROM numbers")
    assert call(12) == "call-000000012"
