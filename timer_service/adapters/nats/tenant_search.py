"""The search for tenants whose commands wait in the stream behind those of other tenants.

JetStream cannot tell which subjects have messages after a sequence. It can list the number of messages of each subject,
and read the next message of one subject. So the search lists the numbers, and looks at the subjects with new messages
first. `candidates` decides on the order.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import nats.errors
from nats.js.errors import Error as JetStreamError

from timer_service.adapters.nats.candidates import Candidates
from timer_service.adapters.nats.durable import DurableConsumer
from timer_service.adapters.nats.read_ahead import READ_BYTES, reads_at_once
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.error_text import error_text
from timer_service.core.values.message import Kind

log = logging.getLogger(__name__)

READ_ERRORS = (nats.errors.Error, JetStreamError, OSError, ValueError, KeyError, TypeError)
"""What a request may raise, and what an answer that nobody expects may cause."""

_LOOK_SECONDS = 0.2
_SPARE_LOOK_SECONDS = 0.05
"""How long a round looks at subjects without new commands, if the last backlog is known to have ended."""
_MOST_LOOKS_AT_ONCE = 256
_SMALL_ANSWER = READ_BYTES // _MOST_LOOKS_AT_ONCE
_IDLE_LISTING_SECONDS = 10.0
_SAME_LISTING_SECONDS = 1.0
"""How long a backlog is not listed again while no command seems to be added to it."""
_SMALL_LISTING = 1024 * 1024
"""If the answers of a listing have no more bytes together, the next one may ask for several of them at once."""
_FEW_COMMANDS = 4096
"""If no more commands were added since, their subjects have 16 MiB at most: the server takes lines of up to 4 KiB."""
_SHORTEST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 300.0
"""How long nothing is listed after listings that failed.

The server closes the connection if an answer has more than its `max_pending`, at most 64 MiB. Anybody who may publish
commands of any tenant can make it that large.
"""


class Listed(NamedTuple):
    """A listing of one type of command that was compared."""

    last_sequence: int
    size: int
    """The bytes of the answer."""


class TenantSearch:
    """Finds waiting tenants. Its memory is bounded by the subjects that it knows, see `candidates`."""

    def __init__(self, consumer: DurableConsumer, subjects: Subjects, messages: Sequence[str]) -> None:
        """`messages` are the types of commands to look for."""
        self._consumer = consumer
        self._subjects = subjects
        self._messages = messages
        self._candidates = Candidates()
        self._listed_at = 0.0
        self._listing_seconds = 0.0
        self._small_until: int | None = None
        """The last sequence of the last listing, if that was small; None if it was not, or failed."""
        self._end: int | None = None
        self._listed_end: int | None = None
        self._pause_seconds = 0.0
        self._list_again_at = 0.0
        self._looks_at_once = 1
        self._knows_all = False

    def stream_ends_at(self, end: int | None) -> None:
        """Note the last sequence of the stream; None if it is not known. If it stays the same, no command was added.

        It may be too low while commands are waiting that were deleted, but it grows with each command that is added.
        """
        self._end = end

    def count_delivered(self, delivery: Delivery) -> None:
        """Count a command that the consumer delivered."""
        if delivery.address.message in self._messages:
            self._candidates.count_delivered(delivery.source, delivery.position.sequence)

    def all_is_delivered(self) -> None:
        """Note that no command waits. So if a listing exists, a later one shows all commands that come to wait."""
        self._knows_all = self._knows_all or self._listed_at > 0

    def forget_backlog(self) -> None:
        """Forget which subjects to look at, because nothing waits long."""
        self._candidates.forget_backlog()
        self._listed_end = None

    def is_idle_listing_due(self, now: float) -> bool:
        """Return whether to list although nothing waits. That takes at most a hundredth of the time."""
        is_due = now - self._listed_at > max(_IDLE_LISTING_SECONDS, 100 * self._listing_seconds)
        return is_due and now >= self._list_again_at

    async def list_while_idle(self) -> None:
        """Learn how many commands are stored, so that later ones are noticed. Raises `READ_ERRORS`."""
        await self._list()
        self.forget_backlog()

    async def find(self, skip: Callable[[str], bool], position: Callable[[str], int]) -> list[str]:
        """Look for a moment for tenants with commands after their `position`. Return them. Raises `READ_ERRORS`.

        Tenants to `skip` are looked at later.
        """
        now = time.monotonic()
        if self._is_listing_due(now):
            await self._list()
        found: list[str] = []

        async def look(subject: str) -> int:
            tenant = self._tenant(subject)
            size = await self._look(subject, position(tenant))
            if size:
                found.append(tenant)
            return size

        def without_skipped(subjects: Iterator[str]) -> Iterator[str]:
            return (subject for subject in subjects if not skip(self._tenant(subject)))

        began = time.monotonic()
        least = reads_at_once(self._consumer.largest_body)
        await _look_at_each(without_skipped(self._candidates.changed()), look, least, least, began + _LOOK_SECONDS)
        others = without_skipped(self._candidates.others())
        until = began + (_SPARE_LOOK_SECONDS if self._knows_all else _LOOK_SECONDS)
        self._looks_at_once = await _look_at_each(others, look, least, max(self._looks_at_once, least), until)
        return found

    def _is_listing_due(self, now: float) -> bool:
        """Return whether to list in a backlog. That takes at most half of the time, and less if nothing is added."""
        is_same = self._end is not None and self._end == self._listed_end
        pause = max(self._listing_seconds, _SAME_LISTING_SECONDS if is_same else 0.0)
        return now >= self._list_again_at and now - self._listed_at > pause

    async def _list(self) -> None:
        began, end = time.monotonic(), self._end
        self._candidates.begin_listing()
        try:
            listings = await self._list_patterns()
        except READ_ERRORS:
            self._small_until = None
            self._pause_seconds = min(max(2 * self._pause_seconds, _SHORTEST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
            self._list_again_at = time.monotonic() + self._pause_seconds
            raise
        last_sequence = min((each.last_sequence for each in listings), default=0)
        self._candidates.end_listing(last_sequence)
        self._small_until = last_sequence if sum(each.size for each in listings) <= _SMALL_LISTING else None
        self._listed_at, self._listed_end = time.monotonic(), end
        self._listing_seconds = self._listed_at - began
        self._pause_seconds = 0.0

    async def _list_patterns(self) -> list[Listed]:
        """List each type of command. Beside a busy event loop, several answers come as soon as a single one."""
        patterns = [self._subjects.pattern(Kind.COMMAND, message) for message in self._messages]
        first = [await self._list_pattern(each) for each in patterns[:1]]
        if not self._are_small(first):  # each answer may take much memory
            return first + [await self._list_pattern(each) for each in patterns[1:]]
        others = await asyncio.gather(*map(self._list_pattern, patterns[1:]), return_exceptions=True)
        return first + [_or_raise(each) for each in others]

    def _are_small(self, first: Sequence[Listed]) -> bool:
        """Return whether all answers are small, because they were, and few commands were added before the first one."""
        until = self._small_until
        return until is not None and all(0 <= each.last_sequence - until <= _FEW_COMMANDS for each in first)

    async def _list_pattern(self, pattern: str) -> Listed:
        listing = await self._consumer.subjects(pattern)
        for part in listing.parts():
            self._candidates.compare(part)
            await asyncio.sleep(0)
        return Listed(listing.last_sequence, listing.size)

    async def _look(self, subject: str, position: int) -> int:
        """Return the bytes of the next command of a subject after a position, or 0 if there is none."""
        try:
            command = await self._consumer.read(position + 1, subject)
        except READ_ERRORS as error:
            log.debug("could not look for a waiting command", extra={"subject": subject, "reason": error_text(error)})
            return 0
        self._candidates.remove(subject)
        return 0 if command is None else 1 + len(command.get("data", "")) + len(command.get("hdrs", ""))

    def _tenant(self, subject: str) -> str:
        return self._subjects.address(Kind.COMMAND, subject).tenant


def _or_raise(listed: Listed | BaseException) -> Listed:
    if isinstance(listed, BaseException):
        raise listed
    return listed


async def _look_at_each(
    subjects: Iterator[str], look: Callable[[str], Awaitable[int]], least: int, at_once: int, until: float
) -> int:
    """Look at subjects until a moment. Return how many to look at once the next time.

    The bytes of an answer are not known before, so `least` subjects are safe at once. More are looked at as long as all
    answers are small. As many large answers are then improbable, because nobody knows the order of the subjects.
    """
    while time.monotonic() < until and (some := list(islice(subjects, at_once))):
        are_small = max(await asyncio.gather(*map(look, some))) <= _SMALL_ANSWER
        at_once = min(2 * at_once, _MOST_LOOKS_AT_ONCE) if are_small else least
    return at_once
