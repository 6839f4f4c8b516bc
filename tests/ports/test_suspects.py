"""How the database counts the processes that died while they handled a suspect."""

from tests.harness.builders import delivery
from timer_service.core.intake.suspects import Suspects
from timer_service.core.ports.database import Database
from timer_service.core.values.message import Position

SUSPECT = delivery(position=Position(2, 17))
OTHER = delivery(position=Position(1, 17))


async def test_each_process_that_dies_counts(store: Database) -> None:
    """Each process that begins and never ends counts for the next one. Other commands are counted by themselves."""
    assert [await Suspects(store).begin(SUSPECT) for _ in range(4)] == [0, 1, 2, 3]
    assert await Suspects(store).begin(OTHER) == 0


async def test_end_forgets_the_deaths(store: Database) -> None:
    """After a process has survived the command, earlier deaths do not count."""
    await Suspects(store).begin(SUSPECT)
    await Suspects(store).begin(OTHER)
    survivor = Suspects(store)
    assert await survivor.begin(SUSPECT) == 1
    await survivor.end(SUSPECT)
    assert await survivor.begin(SUSPECT) == 0
    assert await Suspects(store).begin(OTHER) == 1


async def test_a_process_that_lives_does_not_count(store: Database) -> None:
    """A process that could not record the end, because the database was away, does not count as dead."""
    await Suspects(store).begin(SUSPECT)
    living = Suspects(store)
    assert [await living.begin(SUSPECT) for _ in range(5)] == [1, 1, 1, 1, 1]


async def test_a_process_that_has_ended_a_command_begins_it_again(store: Database) -> None:
    """If a process ends a command and handles it again later, the processes that died in between count."""
    process = Suspects(store)
    await process.begin(SUSPECT)
    await process.end(SUSPECT)
    await Suspects(store).begin(SUSPECT)
    assert await process.begin(SUSPECT) == 1
    await process.end(SUSPECT)
    assert process._begun_here == set()
