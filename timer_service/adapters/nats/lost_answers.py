"""The commands that are lost with the rest of a pull's answer, which the server drops after an empty command.

Pure: `recovery` asks the consumer for its progress, and returns the lost commands to it, so that they come again.
See docs/decisions/0040.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from timer_service.adapters.nats.stored import Receipt, StoredMessage, reply_for

LOOK_AGAIN_SECONDS = 1.5
"""After how long the pull has surely expired."""
_MOST_LOST = 20_000
"""The consumer has no more unsettled commands, unless the operator has raised its `max_ack_pending`."""


class Progress(NamedTuple):
    """What the consumer has delivered to all instances."""

    sequence: int
    """The highest sequence."""
    delivery: int
    """The number of the newest delivery."""

    @classmethod
    def read(cls, consumer: Mapping[str, Any]) -> "Progress":
        """Return the progress from the info of a consumer."""
        return cls(consumer["delivered"]["stream_seq"], consumer["delivered"]["consumer_seq"])


class LostAnswers:
    """Finds the sequences that were delivered after an empty command and have not arrived.

    It looks twice. The first look is as soon as the server has forgotten the pull. A server of a cluster may notice
    that late, and deliver some more commands for the pull. So the second look is when the pull has surely expired.

    Other instances may have some of these commands. They are delivered twice then, which changes nothing.
    """

    def __init__(self, empty: StoredMessage, newest: int, missing: int) -> None:
        """`newest`: the highest sequence so far. `missing`: how many more commands the pull might have brought."""
        self._reply = empty.reply
        self._known = newest
        self._missing = missing
        self._lost: set[int] = set()
        self._arrived: set[int] = set()

    def arrive(self, receipt: Receipt) -> None:
        """A command arrived."""
        self._arrived.add(receipt.sequence)
        self._lost.discard(receipt.sequence)

    def find(self, progress: Progress) -> list[str]:
        """Return the reply subjects of the commands that are lost.

        All that the server has sent before `progress` must have arrived.
        """
        self._lost.update(islice(self._gaps(progress), _MOST_LOST))
        self._known = max(self._known, progress.sequence)
        return self._replies(progress)

    def find_again(self, progress: Progress) -> list[str]:
        """Return the reply subjects of the commands that were lost since, and of those that have not come again."""
        self._lost.update(islice(self._gaps(progress), self._missing))
        return self._replies(progress)

    def _gaps(self, progress: Progress) -> Iterable[int]:
        """Return the sequences in order that were delivered since the last look, and have not arrived."""
        return (each for each in range(self._known + 1, progress.sequence + 1) if each not in self._arrived)

    def _replies(self, progress: Progress) -> list[str]:
        return [reply_for(self._reply, sequence, progress.delivery) for sequence in sorted(self._lost)]
