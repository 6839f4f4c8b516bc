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
MOST_LOST = 20_000
"""The consumer has no more unsettled commands, unless the operator has raised its `max_ack_pending`."""


class Progress(NamedTuple):
    """What the consumer has delivered to all instances."""

    sequence: int
    """The highest sequence."""
    delivery: int
    """The number of the newest delivery."""
    settled: int
    """All commands up to this sequence are settled."""

    @classmethod
    def read(cls, consumer: Mapping[str, Any]) -> "Progress":
        """Return the progress from the info of a consumer."""
        delivered = consumer["delivered"]
        return cls(delivered["stream_seq"], delivered["consumer_seq"], consumer["ack_floor"]["stream_seq"])


class LostAnswers:
    """Finds the sequences that were delivered, are perhaps not settled, and have not arrived at this instance.

    It looks twice. The first look is as soon as the server has forgotten the pull. A server of a cluster may notice
    that late, and deliver some more commands for the pull. So the second look is when the pull has surely expired.

    Commands that come again may have any sequence. So commands older than the newest one may be lost too.

    Other instances may have some of these commands. They are delivered twice then, which changes nothing.
    """

    def __init__(self, empty: StoredMessage, newest: int, arrived: Iterable[int]) -> None:
        """`newest`: the highest sequence that has arrived. `arrived`: the sequences that have arrived lately."""
        self._reply = empty.reply
        self._first = newest - MOST_LOST + 1
        self._arrived = set(arrived)

    def arrive(self, receipt: Receipt) -> None:
        """A command arrived."""
        self._arrived.add(receipt.sequence)

    def find(self, progress: Progress) -> list[str]:
        """Return the reply subjects of the commands that are lost, in order.

        All that the server has sent before `progress` must have arrived.
        """
        unsettled = range(max(self._first, progress.settled + 1), progress.sequence + 1)
        lost = (sequence for sequence in unsettled if sequence not in self._arrived)
        return [reply_for(self._reply, sequence, progress.delivery) for sequence in islice(lost, MOST_LOST)]
