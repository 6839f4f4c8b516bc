"""The epochs of commands: which command is newer, even after the broker lost or replaced the command stream.

A position is an epoch and a sequence. The sequence comes from the broker. It begins again when the stream is recreated,
and it is used again when the stream is rolled back, for example to an old copy. So the epoch comes from the database.
It remembers the newest command that was handled, by its sequence and by when the broker stored it. If the stream still
has this command, the epoch stays. Otherwise the commands that were stored later get the next epoch, so they are newer.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from timer_service.core.values.message import Position


class StreamState(NamedTuple):
    """The state of a command stream, as the broker reports it."""

    created: str
    """When it was created, as the broker writes it."""
    created_ms: int
    """The same in Unix milliseconds."""
    first_sequence: int
    last_sequence: int
    """The sequence of the newest command that was ever stored, or 0."""


class StoredCommand(NamedTuple):
    """A command in the stream: its sequence, and when the broker stored it, in nanoseconds of the broker's clock."""

    sequence: int
    stored_at: int


class Received(NamedTuple):
    """A command that a broker delivered: its epoch at that time, and where and when it was stored."""

    epoch: int
    command: StoredCommand


LookAtStream = Callable[[], Awaitable[StreamState]]
"""Returns the state of the stream now."""

FindCommand = Callable[[int], Awaitable[StoredCommand | None]]
"""Returns the first command of the stream at a sequence or after it; None if there is none."""


class Part(NamedTuple):
    """One part of the history of a stream: the commands from a sequence on, which have one epoch."""

    epoch: int
    created: str
    first_sequence: int
    last_sequence: int
    """The highest sequence that was handled; one less than the first if none was."""
    last_stored_at: int


class Epochs(NamedTuple):
    """The epochs of the commands of one stream. `parts` are in order of their epochs."""

    parts: tuple[Part, ...]

    def position(self, sequence: int) -> Position:
        """Return the position of a command. Of two parts that contain it, the newer one counts."""
        newest = self.parts[-1]
        if newest.first_sequence <= sequence:  # this is called for each command
            return Position(newest.epoch, sequence)
        for part in reversed(self.parts):
            if part.first_sequence <= sequence:
                return Position(part.epoch, sequence)
        return Position(self.parts[0].epoch, sequence)

    @property
    def newest(self) -> Part:
        """The part that new commands belong to."""
        return self.parts[-1]


async def recognize(
    known: Sequence[Part], stream: StreamState, find: FindCommand, received: Received | None = None
) -> list[Part]:
    """Return the history of which this stream is the end: the known parts, and a new one if the stream is another.

    - The stream has the newest handled command: nothing is new.
    - It does not have this command, but older ones, so it was rolled back: the commands stored later are a new part.
    - It has none of the handled commands, so it is a new stream: all its commands are a new part.
    - It is an earlier stream, and another one was used in between: its unhandled commands are a new part.

    `received` is the newest command that was delivered before a reconnect. It may not be handled yet. If the stream has
    lost it, the stream was rolled back too: another command may have its sequence soon.

    A stream that moved to another server together with its commands is recognized by these, although the other server
    created it later.
    """
    if not known:
        return [Part(stream.created_ms, stream.created, 1, 0, 0)]
    own = [part for part in known if part.created == stream.created]
    last = own[-1] if own else known[-1]
    missing = await _missing_command(last, received, stream, find)
    if missing is None:
        return _continue(_rename(known, last, stream), StoredCommand(last.last_sequence, last.last_stored_at), stream)
    last_old = await _last_stored_until(missing.last_stored_at, stream, find)
    if last_old is not None:
        known = _rename(known, last, stream)
    return [*known, _next_part(known[-1], stream, last_old)]


async def _missing_command(
    last: Part, received: Received | None, stream: StreamState, find: FindCommand
) -> Part | None:
    """Return the part as it was with a command that the stream has lost; None if it has lost none.

    The handled command comes first. A command that was read while the stream was being replaced may be one of the other
    stream: it shows that commands were lost, but not that the stream is the same.
    """
    for newest in dict.fromkeys((last, _with_received(last, received))):
        if not await _has_newest_command(newest, stream, find):
            return newest
    return None


def _with_received(part: Part, received: Received | None) -> Part:
    """Return a part as if its received command were handled."""
    if received is None or received.epoch != part.epoch or received.command.sequence <= part.last_sequence:
        return part
    return part._replace(last_sequence=received.command.sequence, last_stored_at=received.command.stored_at)


def _rename(known: Sequence[Part], last: Part, stream: StreamState) -> list[Part]:
    """Return the parts with the creation time that the stream of `last` has now."""
    return [part._replace(created=stream.created) if part.created == last.created else part for part in known]


def _continue(known: list[Part], handled: StoredCommand, stream: StreamState) -> list[Part]:
    """Return the parts of a stream that is as it was. It gets a new part if another stream was used in between."""
    is_newest = known[-1].created == stream.created
    return known if is_newest else [*known, _next_part(known[-1], stream, handled)]


def _next_part(newest: Part, stream: StreamState, before: StoredCommand | None) -> Part:
    """Return a part with a greater epoch than all others, which begins after a command."""
    epoch = max(newest.epoch + 1, stream.created_ms)
    if before is None:
        return Part(epoch, stream.created, 1, 0, 0)
    return Part(epoch, stream.created, before.sequence + 1, *before)


async def _has_newest_command(part: Part, stream: StreamState, find: FindCommand) -> bool:
    """Return whether the stream has the newest handled command of a part, or had it and has deleted it."""
    if part.last_sequence == 0:
        return part.created == stream.created
    if stream.last_sequence < part.last_sequence:
        return False
    found = await find(part.last_sequence)
    if found is None or found.sequence != part.last_sequence:  # deleted, for example because of its age
        return part.created == stream.created
    return found.stored_at == part.last_stored_at


async def _last_stored_until(at: int, stream: StreamState, find: FindCommand) -> StoredCommand | None:
    """Return the last command that was stored at an instant or before it, or None. Commands are stored in order."""
    last: StoredCommand | None = None
    low, high = max(stream.first_sequence, 1), stream.last_sequence + 1
    while low < high:
        middle = (low + high) // 2
        found = await find(middle)
        if found is None or found.sequence >= high or found.stored_at > at:
            high = middle
        else:
            last = found
            low = found.sequence + 1
    return last
