"""The time limits fit together. Each list is in ascending order, because a limit must end before the next one does.

The reasons are in the comments of the code. A limit in a wrong unit does not fit between its neighbours.
"""

from itertools import pairwise

import pytest

from timer_service.adapters.nats import connection, publisher, streams
from timer_service.adapters.nats import log as nats_log
from timer_service.adapters.postgres import database
from timer_service.config import Config
from timer_service.core.events import pace, relay
from timer_service.core.intake import cursor, reader, trouble
from timer_service.core.values import delays

LEASE = cursor.LEASE_MS / 1000
HOLD = Config().visibility_timeout.total_seconds()
HOUR = 3600


@pytest.mark.parametrize(
    "limits",
    [
        [
            0.1,
            database._RECONNECT_SECONDS,
            database._CONNECT_SECONDS,  # a server that does not answer leaves time for another one
            database._FIRST_CONNECT.total_seconds(),
            database.STATEMENT_SECONDS,
            database.STATEMENT_SECONDS + database.ROLLBACK_SECONDS,
            reader._LONGEST_SECONDS,  # then the process counts as one that hangs
            HOUR,
        ],
        [1, connection._CLOSE_SECONDS, Config().shutdown_timeout.total_seconds()],
        [1, publisher._TIMEOUT_SECONDS, publisher._CALL_SECONDS],
        [publisher._CALL_SECONDS + publisher._TIMEOUT_SECONDS, HOLD / 2],  # the relay publishes for half of a lease
        [1, streams._WRITE_SECONDS, 10, streams._DUPLICATE_WINDOW.total_seconds(), HOUR],
        [
            pace.LONGEST_MS / 1000,
            streams._REFUSED_SECONDS,
            120,
        ],  # a refusal counts until the next attempt
        [0.1, reader._LONE_SECONDS, reader._PAUSE_SECONDS, trouble._UNHEALTHY_SECONDS, 60],
        [reader._PAUSE_SECONDS, reader._SLOW_SECONDS, reader._LONGEST_SECONDS, HOUR],
        [0.1, reader._LOOK_SECONDS, reader._KEEP_SECONDS, LEASE / 2],  # a slow transaction costs no lease
        [LEASE + reader._LOOK_SECONDS, 5],  # a fleet goes on so soon after its reader was killed
        [1, nats_log.PULL_SECONDS, nats_log.PULL_SECONDS + nats_log.LATE_SECONDS, 10],
        [1, delays.LONGEST.total_seconds(), delays.LONGEST_DELAY.total_seconds(), HOUR],
        [1, relay._LOCKED_ROWS_PAUSE_MS, pace.SHORTEST_MS, relay._UNSETTLED_PAUSE_MS, pace.LONGEST_MS, 1000 * HOLD],
        [500, streams._AGAIN_MS, 5000],
    ],
)
def test_limits_in_order(limits: list[float]) -> None:
    """Each limit is at most as long as the next one."""
    assert [pair for pair in pairwise(limits) if pair[0] > pair[1]] == []
