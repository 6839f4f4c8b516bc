"""How the database learns how old the commands are that are not settled."""

from tests.harness.clock import NOW
from timer_service.core.intake.installation import read_or_create
from timer_service.core.intake.replay import BacklogWatch
from timer_service.core.ports.database import Database
from timer_service.core.ports.transactions import in_transaction

MINUTE_MS = 60_000


async def test_backlog_is_recorded(store: Database) -> None:
    """The oldest unsettled command is recorded if it changes by a minute, or begins or ceases to exist."""
    oldest: list[int | None] = [NOW, NOW + MINUTE_MS - 1, NOW + MINUTE_MS, None, NOW]
    expected = [NOW, NOW, NOW + MINUTE_MS, None, NOW]
    found: list[int | None] = []
    answers = iter(oldest)

    async def ask() -> int | None:
        return next(answers)

    watch = BacklogWatch(store, ask)
    for _ in oldest:
        assert (await watch.tick(NOW)).next_at == NOW + MINUTE_MS
        found.append((await in_transaction(store, read_or_create)).unsettled_since)
    assert found == expected


async def test_broker_does_not_answer(store: Database) -> None:
    """While the broker does not answer, the record stays, and the watch asks again with the next pass."""
    answers: list[int | Exception] = [NOW, OSError("away")]

    async def ask() -> int:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    watch = BacklogWatch(store, ask)
    assert [(await watch.tick(NOW)).next_at for _ in range(2)] == [NOW + MINUTE_MS, None]
    assert (await in_transaction(store, read_or_create)).unsettled_since == NOW
