"""The epochs of a command stream that is recreated, rolled back, moved and trimmed at random."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timer_service.core.intake.epochs import Epochs, Part, Received, StoredCommand, StreamState, recognize
from timer_service.core.values.message import Position


class Log(NamedTuple):
    """A command stream of a broker: what it has stored, and where."""

    created: int
    commands: tuple[StoredCommand, ...] = ()
    first: int = 1

    @property
    def last(self) -> int:
        return self.commands[-1].sequence if self.commands else self.first - 1

    def state(self) -> StreamState:
        return StreamState(f"created {self.created}", self.created, self.first, self.last)

    async def find(self, sequence: int) -> StoredCommand | None:
        return next((each for each in self.commands if each.sequence >= sequence), None)


async def join(known: Sequence[Part], log: Log, received: Received | None = None) -> tuple[list[Part], Epochs]:
    parts = await recognize(known, log.state(), log.find, received)
    return parts, Epochs(tuple(part for part in parts if part.created == log.state().created))


def handled(parts: Sequence[Part], command: StoredCommand, epochs: Epochs) -> list[Part]:
    """Record a handled command, as `command_streams.advance` does."""
    epoch = epochs.position(command.sequence).epoch
    return [
        part._replace(last_sequence=command.sequence, last_stored_at=command.stored_at)
        if part.epoch == epoch and part.last_sequence < command.sequence
        else part
        for part in parts
    ]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.just("handle"), st.integers(0, 9)),
        st.tuples(st.just("receive"), st.integers(0, 9)),
        st.tuples(st.just("roll back"), st.integers(0, 9)),
        st.tuples(st.just("roll back to a copy"), st.integers(0, 9)),
        st.tuples(st.just("recreate"), st.integers(0, 3)),
        st.tuples(st.just("trim"), st.integers(0, 9)),
        st.tuples(st.just("join"), st.just(0)),
        st.tuples(st.just("join"), st.just(0)),
    ),
    min_size=20,  # shorter histories rarely lose a handled command
    max_size=60,
)


def change(log: Log, operation: str, number: int, clock: int) -> Log:
    """Return the stream after an operation of the broker."""
    match operation:
        case "append":
            added = (StoredCommand(log.last + 1 + each, clock + each) for each in range(number))
            return log._replace(commands=(*log.commands, *added))
        case "roll back" | "roll back to a copy":
            kept = log.commands[: max(0, len(log.commands) - number)]
            return log._replace(commands=kept, created=clock if operation == "roll back to a copy" else log.created)
        case "recreate":
            return Log(clock, tuple(StoredCommand(each + 1, clock + each) for each in range(number)))
        case "trim":
            dropped = number % (len(log.commands) + 1)
            return log._replace(first=log.first + dropped, commands=log.commands[dropped:])
    return log


@given(OPERATIONS)
async def test_random_histories(operations: list[tuple[str, int]]) -> None:
    """A command keeps its position. A command stored after all handled commands is newer than each of them.

    The service receives and handles commands only after it has joined the stream as it is, in any order. No two
    commands have the same position, handled or not.
    """
    clock = 1_000
    log = Log(clock)
    parts, epochs = await join([], log)
    positions: dict[StoredCommand, Position] = {}
    seen: dict[Position, StoredCommand] = {}
    received: Received | None = None
    is_joined = True
    for operation, number in operations:
        clock += 10
        match operation:
            case "receive" if is_joined and log.commands:
                for command in log.commands[number % len(log.commands) :]:
                    assert seen.setdefault(epochs.position(command.sequence), command) == command
                received = Received(epochs.newest.epoch, log.commands[-1])
            case "handle" if is_joined and log.commands:
                command = log.commands[number % len(log.commands)]
                position = epochs.position(command.sequence)
                assert seen.setdefault(position, command) == command
                assert positions.setdefault(command, position) == position, "a redelivered command is the same command"
                newer = [other for other, at in positions.items() if at > position]
                assert all(other.stored_at > command.stored_at for other in newer), "no older command is newer"
                assert all(at < position for other, at in positions.items() if other.stored_at < command.stored_at)
                parts = handled(parts, command, epochs)
            case "join":
                before = epochs.newest.epoch
                parts, epochs = await join(parts, log, received)
                received = received if epochs.newest.epoch == before else None
                assert (await join(parts, log, received))[0] == parts, "a second join changes nothing"
                is_joined = True
            case _:
                log = change(log, operation, number, clock)
                is_joined = is_joined and operation in {"append", "trim", "receive", "handle"}


FIRST = Log(1_000, tuple(StoredCommand(number, 1_000 + number) for number in range(1, 11)))


async def after_handling(log: Log, *sequences: int) -> tuple[list[Part], Epochs]:
    parts, epochs = await join([], log)
    for sequence in sequences:
        parts = handled(parts, log.commands[sequence - 1], epochs)
    return parts, epochs


async def test_same_stream() -> None:
    """The epoch of a stream that is as it was stays. It is the creation time of the first stream."""
    parts, _ = await after_handling(FIRST, 10)
    _, epochs = await join(parts, FIRST)
    assert epochs.position(7) == Position(1_000, 7)


async def test_recreated_stream() -> None:
    """All commands of a recreated stream are newer than the handled ones, whatever its creation time."""
    parts, _ = await after_handling(FIRST, 10)
    _, epochs = await join(parts, Log(500, (StoredCommand(1, 5_000),)))
    assert epochs.position(1) == Position(1_001, 1)


async def test_rolled_back_stream() -> None:
    """After a rollback the kept commands keep their positions, and the new commands at used sequences are newer."""
    parts, before = await after_handling(FIRST, 10)
    rolled_back = FIRST._replace(commands=(*FIRST.commands[:6], StoredCommand(7, 5_000)))
    _, epochs = await join(parts, rolled_back)
    assert epochs.position(6) == before.position(6)
    assert epochs.position(7) > before.position(10)


async def test_rollback_among_commands_of_the_same_instant() -> None:
    """Of commands that were stored at the same instant, those that a rollback keeps keep their positions."""
    together = Log(1_000, (*FIRST.commands[:6], StoredCommand(7, 2_000), StoredCommand(8, 2_000)))
    parts, before = await after_handling(together, 8)
    _, epochs = await join(parts, together._replace(commands=together.commands[:7]))
    assert epochs.position(7) == before.position(7)
    assert epochs.position(8) > before.position(8)


async def test_joins_after_a_rollback() -> None:
    """A rollback is noticed once: the next joins change nothing, before and after a new command is handled."""
    parts, _ = await after_handling(FIRST, 10)
    rolled_back = FIRST._replace(commands=(*FIRST.commands[:6], StoredCommand(7, 5_000)))
    parts, epochs = await join(parts, rolled_back)
    again, _ = await join(parts, rolled_back)
    advanced = handled(parts, rolled_back.commands[6], epochs)
    later, same = await join(advanced, rolled_back)
    assert (again, later, same) == (parts, advanced, epochs._replace(parts=tuple(advanced)))


async def test_second_rollback() -> None:
    """A rollback that loses commands stored after another rollback is noticed too."""
    parts, _ = await after_handling(FIRST, 10)
    parts, between = await join(parts, FIRST._replace(commands=FIRST.commands[:6]))
    once = FIRST._replace(commands=(*FIRST.commands[:6], StoredCommand(7, 5_000), StoredCommand(8, 5_001)))
    parts = handled(parts, once.commands[7], between)
    _, epochs = await join(parts, once._replace(commands=(*once.commands[:7], StoredCommand(8, 9_000))))
    assert epochs.position(7) == between.position(7)
    assert epochs.position(8) > between.position(8)


async def test_rolled_back_stream_that_is_longer_again() -> None:
    """A rollback is noticed even if more commands than were lost have been stored since."""
    parts, before = await after_handling(FIRST, 10)
    new = tuple(StoredCommand(number, 5_000 + number) for number in range(7, 30))
    _, epochs = await join(parts, FIRST._replace(commands=(*FIRST.commands[:6], *new)))
    assert [epochs.position(sequence) > before.position(10) for sequence in (6, 7, 12, 29)] == [False, True, True, True]


async def test_rollback_behind_the_handled_commands() -> None:
    """If a rollback loses commands that had arrived but were not handled, later commands at their places are newer."""
    parts, before = await after_handling(FIRST, 4)
    rolled_back = FIRST._replace(commands=(*FIRST.commands[:6], StoredCommand(7, 5_000)))
    _, same = await join(parts, rolled_back)
    _, epochs = await join(parts, rolled_back, Received(before.newest.epoch, FIRST.commands[9]))
    assert same.position(7) == before.position(7), "nobody knows that a command was lost"
    assert epochs.position(6) == before.position(6)
    assert epochs.position(7) > before.position(10)


async def test_received_commands_of_an_earlier_part_do_not_matter() -> None:
    """A command that arrived under another epoch says nothing about the newest part."""
    parts, before = await after_handling(FIRST, 4)
    _, epochs = await join(parts, FIRST._replace(commands=FIRST.commands[:6]), Received(1, FIRST.commands[9]))
    assert epochs.newest.epoch == before.newest.epoch


@pytest.mark.parametrize("kept", [5, 10])
@pytest.mark.parametrize("handled_until", [0, 4])
async def test_commands_read_from_another_stream_too_early(handled_until: int, kept: int) -> None:
    """A command that was read from a recreated stream before that was recognized does not make it the same stream.

    It may be lost again meanwhile.
    """
    parts, before = await after_handling(FIRST, *range(1, handled_until + 1))
    other = Log(9_000, tuple(StoredCommand(number, 9_000 + number) for number in range(1, 11)))
    received = Received(before.newest.epoch, other.commands[7])
    _, epochs = await join(parts, other._replace(commands=other.commands[:kept]), received)
    assert [epochs.position(number) > before.position(10) for number in (1, 7, 8, 9)] == [True] * 4


async def test_moved_stream() -> None:
    """A copy of the stream on another server has the same epoch, and a copy that lags behind keeps what it has."""
    parts, before = await after_handling(FIRST, 10)
    _, whole = await join(parts, FIRST._replace(created=9_000))
    _, lagging = await join(parts, FIRST._replace(created=9_000, commands=FIRST.commands[:4]))
    assert [whole.position(sequence) for sequence in (3, 11)] == [before.position(3), before.position(11)]
    assert lagging.position(4) == before.position(4)
    assert lagging.position(5) > before.position(10)


async def test_return_to_an_earlier_stream() -> None:
    """After a time with another stream, new commands of the first stream are newer than the other's."""
    parts, before = await after_handling(FIRST, 8)
    other = Log(9_000, (StoredCommand(1, 9_001), StoredCommand(2, 9_002)))
    parts, between = await join(parts, other)
    parts = handled(parts, other.commands[1], between)
    _, epochs = await join(parts, FIRST)
    assert epochs.position(8) == before.position(8)
    assert epochs.position(9) > between.position(2)


@pytest.mark.parametrize("first", [3, 11])
async def test_expired_commands(first: int) -> None:
    """The epoch stays if the newest handled command has expired, and if the whole stream was purged."""
    parts, before = await after_handling(FIRST, 2)
    kept = tuple(each for each in FIRST.commands if each.sequence >= first)
    _, epochs = await join(parts, FIRST._replace(commands=kept, first=first))
    assert epochs.position(11) == before.position(11)
