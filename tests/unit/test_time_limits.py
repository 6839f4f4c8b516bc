"""The time limits fit together. Each list is in ascending order, because a limit must end before the next one does.

The reasons are in the comments of the code. A limit in a wrong unit does not fit between its neighbours.
"""

from itertools import pairwise

import pytest

from timer_service.adapters.nats import (
    broker,
    connection,
    durable,
    lost_answers,
    membership,
    publisher,
    puller,
    pulls,
    redelivery,
    returned,
    storage,
    stream_upkeep,
    streams,
    subscription,
)
from timer_service.adapters.postgres import database
from timer_service.config import Config
from timer_service.core.events import pause, relay
from timer_service.core.intake import consumer, failures, rejector
from timer_service.core.service import retention
from timer_service.core.values import backoff, delays

ACK_WAIT = durable._ACK_WAIT.total_seconds()
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
            database._STATEMENT_SECONDS,
            database._STATEMENT_SECONDS + database._ROLLBACK_SECONDS,
            ACK_WAIT,  # otherwise commands are handled twice
            60,
        ],
        [
            subscription._LINGER_SECONDS,
            0.01,
            puller._SHORT_WAIT_SECONDS,
            durable._SHORT_ACK_WAIT.total_seconds(),
            pulls.PULL_SECONDS,
            pulls.PULL_SECONDS + pulls._GRACE_SECONDS,
            lost_answers.LOOK_AGAIN_SECONDS,
            broker._CONFIRM_WITHIN,
            membership._BUSY_SECONDS,
            ACK_WAIT,
        ],
        [0.01, membership._LOOK_AHEAD_AFTER, membership._REJOIN_SECONDS, subscription._SETTLE_SECONDS, ACK_WAIT],
        [returned._RENEW_SECONDS + database._STATEMENT_SECONDS, ACK_WAIT, subscription._HOLD_SECONDS, 60],
        [1, redelivery._REDELIVERY_SECONDS, ACK_WAIT],
        [1, connection._CLOSE_SECONDS, Config().shutdown_timeout.total_seconds()],
        [1, publisher._TIMEOUT_SECONDS, publisher._CALL_SECONDS],
        [publisher._CALL_SECONDS + publisher._TIMEOUT_SECONDS, HOLD / 2],  # the relay publishes for half of a lease
        [1, streams._WRITE_SECONDS, 10, streams._DUPLICATE_WINDOW.total_seconds(), HOUR],
        [60, rejector._LONGEST_REDELIVERY_DELAY.total_seconds(), storage._REFUSED_SECONDS, 120],
        [rejector._LONGEST_REDELIVERY_DELAY.total_seconds(), rejector._UNHEALTHY_SECONDS, 120],
        [1, rejector._REDELIVERY_DELAY.total_seconds(), failures._UNHEALTHY_SECONDS, 60],
        [consumer._PAUSE_SECONDS, consumer._SLOW_BATCH_SECONDS, consumer._LONGEST_BATCH_SECONDS, HOUR],
        [1, delays.LONGEST.total_seconds(), backoff.LONGEST_DELAY.total_seconds(), HOUR],
        [1, relay._LOCKED_ROWS_PAUSE_MS, pause.SHORTEST_MS, relay._UNSETTLED_PAUSE_MS, pause.LONGEST_MS, 1000 * HOLD],
        [1, retention._SHORTEST_PAUSE_MS, 1000, retention._TOLERANCE_MS, retention._TRUSTED_AFTER_MS, 1000 * HOUR],
        [500, stream_upkeep._AGAIN_MS, 5000],
    ],
)
def test_limits_in_order(limits: list[float]) -> None:
    """Each limit is at most as long as the next one."""
    assert [pair for pair in pairwise(limits) if pair[0] > pair[1]] == []
