"""What the service writes into the consumer, and how it reads it, against a scripted JetStream."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from nats.aio.client import Client

from tests.harness.history import MemoryHistory
from tests.harness.jetstream import ScriptedJetStream
from timer_service.adapters.nats import take_over
from timer_service.adapters.nats.durable import DurableConsumer, InFlight
from timer_service.adapters.nats.holding import HOLDER, TakenOverError
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.intake.epochs import Epochs
from timer_service.core.values.errors import StartError

SECOND = 1_000_000_000
HALF = SECOND // 2
STORED = "2026-01-01T00:00:05Z"
SAVED = "timer-service.ack-wait"
OF_OPERATOR = {"owner": "me"}


class Site:
    """A consumer in a scripted JetStream, and the service's view of it."""

    def __init__(self) -> None:
        self.js = ScriptedJetStream()
        self.js.stored_at = STORED
        self.history = MemoryHistory()
        self.durable = DurableConsumer(cast("Client", self), Subjects("timer"))

    async def request(self, subject: str, data: bytes, *, timeout: float) -> SimpleNamespace:  # noqa: ARG002, ASYNC109
        """Send a request, as the client does."""
        return SimpleNamespace(data=json.dumps(self.js.answer(subject, data)).encode())

    @property
    def config(self) -> dict[str, Any]:
        """The settings of the consumer."""
        assert self.js.consumer is not None
        return self.js.consumer

    async def join(self, *, handled: int = 0, delivered: int = 0, settled: int = 0) -> None:
        """Join the consumer of a stream whose newest handled command is known."""
        self.js.last_sequence = max(self.js.last_sequence, handled, delivered)
        await self.durable.join(self.history)
        self.js.delivered, self.js.settled = delivered, settled
        if handled:
            self.history.handle(handled, 1_767_225_605 * SECOND)


@pytest.fixture
def site() -> Site:
    """Return a stream without a consumer."""
    return Site()


async def test_shortened_ack_wait(site: Site) -> None:
    """The operator's `ack_wait` is kept while it is shortened, and restored later. Nothing else is changed."""
    await site.join()
    site.config["metadata"] |= OF_OPERATOR
    site.config["ack_wait"] = 7 * SECOND
    before = json.loads(json.dumps(site.config))
    site.js.delivered, site.js.in_flight = 9, 2
    found = await site.durable.shorten_ack_wait()
    shortened = {**before, "ack_wait": HALF, "metadata": {**before["metadata"], SAVED: str(7 * SECOND)}}
    assert (found, site.config) == (InFlight(number=2, last=9), shortened)
    await site.durable.restore_ack_wait()
    assert site.config == before


async def test_nothing_is_in_flight(site: Site) -> None:
    """If no command is in flight, `ack_wait` stays as it is. Nothing is written to restore it either."""
    await site.join()
    before = json.loads(json.dumps(site.config))
    site.js.requests.clear()
    assert await site.durable.shorten_ack_wait() is None
    await site.durable.restore_ack_wait()
    assert (site.config, site.js.requests) == (before, ["CONSUMER.INFO"] * 2)


@pytest.mark.parametrize("change", ["shorten_ack_wait", "restore_ack_wait", "forget_replay"])
async def test_a_lost_process_changes_nothing(site: Site, change: str) -> None:
    """After another process has taken over, this one does not write the consumer's settings."""
    await site.durable.join(site.history, alone=True)
    site.config["metadata"] |= {HOLDER: "the other one", SAVED: str(7 * SECOND)}
    site.js.in_flight = 2
    before = json.loads(json.dumps(site.config))
    with pytest.raises(TakenOverError):
        await getattr(site.durable, change)()
    assert site.config == before


@pytest.mark.parametrize(("settled", "start"), [(3, {"opt_start_seq": 4}), (0, {})])
async def test_consumer_that_begins_again(site: Site, settled: int, start: dict[str, int]) -> None:
    """A consumer that begins again has the operator's settings, and no trace of an earlier beginning."""
    await site.join(handled=9, delivered=9, settled=settled)
    site.config["metadata"] |= {**OF_OPERATOR, SAVED: str(7 * SECOND)}
    site.config.update(ack_wait=HALF, max_ack_pending=5, opt_start_time=STORED, opt_start_seq=2)
    site.js.last_sequence = 7
    await site.durable.join(site.history)
    config = site.config
    assert (config["ack_wait"], config["max_ack_pending"]) == (7 * SECOND, 5)
    assert {name: value for name, value in config.items() if name.startswith("opt_start")} == start
    assert config["deliver_policy"] == ("by_start_sequence" if start else "all")
    assert config["metadata"].items() >= OF_OPERATOR.items()
    assert SAVED not in config["metadata"]


async def test_consumer_that_has_delivered_everything(site: Site) -> None:
    """A consumer that has delivered the last command of the stream is valid, and does not begin again."""
    await site.join(handled=9, delivered=9, settled=9)
    site.js.requests.clear()
    await site.durable.join(site.history)
    assert "CONSUMER.DELETE" not in site.js.requests


@pytest.mark.parametrize(
    ("waiting", "in_flight", "found"),
    [(0, 0, None), (1, 0, 1_767_225_605_000), (0, 1, 1_767_225_605_000)],
)
async def test_oldest_unsettled_command(site: Site, waiting: int, in_flight: int, found: int | None) -> None:
    """A command is not settled while it waits for its delivery, and while it is in flight."""
    await site.join(handled=3, delivered=2, settled=2)
    site.js.waiting, site.js.in_flight = waiting, in_flight
    assert await site.durable.oldest_unsettled() == found


async def test_a_settled_command_is_not_the_oldest_unsettled_one(site: Site) -> None:
    """The oldest unsettled command is the first one after those that are settled."""
    await site.join(handled=3, delivered=3, settled=2)
    site.js.in_flight, site.js.stored_later[3] = 1, "2026-01-01T00:00:07Z"
    assert await site.durable.oldest_unsettled() == 1_767_225_607_000


class Neighbour:
    """Another service that works in rounds: in each, it looks as if it did nothing, or it settles a command."""

    def __init__(self, site: Site, rounds: str) -> None:
        self._site = site
        self._rounds = list(rounds)
        self.looks = 0

    async def sleep(self, _seconds: float) -> None:
        self.looks += 1
        what = self._rounds.pop(0)
        self._site.js.pulls = what == "p"
        self._site.js.settled += what == "s"
        self._site.js.delivered += what == "d"
        self._site.js.in_flight = what not in {"e", "p"}


async def join_beside(site: Site, monkeypatch: pytest.MonkeyPatch, rounds: str, *, joins: bool) -> None:
    """Join beside a neighbour that works in rounds. Assert that this takes all rounds, and whether it succeeds."""
    neighbour = Neighbour(site, rounds)
    monkeypatch.setattr(take_over, "asyncio", neighbour)
    if joins:
        await site.durable.join(site.history, alone=True)
    else:
        with pytest.raises(StartError, match="another service with a copy of this database"):
            await site.durable.join(site.history, alone=True)
    assert neighbour.looks == len(rounds)


@pytest.mark.parametrize(
    ("rounds", "joins"),
    [
        ("...", True),
        ("eee", True),
        ("eep...", True),
        ("..s...", True),
        ("..d..p...", True),
        ("..s" * 3 + ".", False),
        ("p" * 10, False),
    ],
)
async def test_taking_over_from_a_dead_process(
    site: Site, monkeypatch: pytest.MonkeyPatch, rounds: str, *, joins: bool
) -> None:
    """A process takes over from one that did nothing in three looks in a row."""
    await site.join(handled=5, delivered=5)
    site.js.last_sequence = 100
    site.js.in_flight = 1
    await join_beside(site, monkeypatch, rounds, joins=joins)


@pytest.mark.parametrize(("rounds", "joins"), [("ee", True), ("p" * 10, False), ("epe" + "p" * 7, False)])
async def test_a_living_process_between_two_pulls(
    site: Site, monkeypatch: pytest.MonkeyPatch, rounds: str, *, joins: bool
) -> None:
    """A process without commands that has no pull at the first look is not dead yet: it may be about to send one."""
    await site.join()
    await join_beside(site, monkeypatch, rounds, joins=joins)


def join_meanwhile(site: Site, monkeypatch: pytest.MonkeyPatch, mark: str, value: str) -> None:
    """Let another process write a mark into the consumer while this process asks its database."""
    recognize = site.history.recognize

    async def write_first(*arguments: Any) -> Epochs:
        site.config["metadata"][mark] = value
        return await recognize(*arguments)

    monkeypatch.setattr(site.history, "recognize", write_first)


async def test_another_process_is_faster(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another process takes over while this one asks its database, this one looks again, and leaves it alone."""
    await site.join()
    join_meanwhile(site, monkeypatch, HOLDER, "the faster one")
    neighbour = Neighbour(site, "ee" + "p" * 10)
    monkeypatch.setattr(take_over, "asyncio", neighbour)
    with pytest.raises(StartError, match="another service with a copy of this database"):
        await site.durable.join(site.history, alone=True)
    assert site.config["metadata"][HOLDER] == "the faster one"


async def test_a_lost_process_does_not_overwrite_the_token(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that joins again, and is taken over meanwhile, does not write its own token again."""
    await site.durable.join(site.history, alone=True)
    join_meanwhile(site, monkeypatch, HOLDER, "the other one")
    site.history.handle(1, 17)
    site.js.created = "2026-02-02T00:00:00Z"
    with pytest.raises(TakenOverError):
        await site.durable.join(site.history, alone=True)
    assert site.config["metadata"][HOLDER] == "the other one"


@pytest.mark.parametrize("handled", [0, 3])
async def test_another_database_is_faster(site: Site, monkeypatch: pytest.MonkeyPatch, handled: int) -> None:
    """If a service with another database gets the consumer meanwhile, its consumer is neither changed nor replaced."""
    await site.join(handled=handled, delivered=3)
    site.js.created = "2026-02-02T00:00:00Z"
    join_meanwhile(site, monkeypatch, "timer-service.database", "another")
    with pytest.raises(StartError, match="another database"):
        await site.durable.join(site.history)
    assert site.config["metadata"]["timer-service.database"] == "another"
