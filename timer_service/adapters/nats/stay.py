"""A stay: the time of a subscription in one stream with one epoch, and the commands that have arrived in it."""

import asyncio
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import NamedTuple

from timer_service.adapters.nats.buffer import Buffer
from timer_service.adapters.nats.durable import DurableConsumer
from timer_service.adapters.nats.express_lane import ExpressLane
from timer_service.adapters.nats.returned import Returned
from timer_service.adapters.nats.stored import StoredMessage
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.intake.epochs import Epochs, Received
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.message import Kind


class Handle(NamedTuple):
    """How to settle a delivery: the reply subject, and for which stay it is valid."""

    reply: str
    stay: int


class Stay:
    """The commands of a stay that are not handed out yet.

    It goes on after a reconnect to the same stream. Commands of an earlier stay are not handed out and not settled:
    their sequences may stand for other commands now.

    First come the commands that the caller has put back, then those in the buffer. Commands of other tenants may
    overtake them: small ones that are in the buffer already, and those that the express lane has read.
    """

    def __init__(
        self,
        number: int,
        epochs: Epochs,
        consumer: DurableConsumer,
        subjects: Subjects,
        *,
        messages: Collection[str],
        batch_bytes: int,
        ready: asyncio.Event,
        reached: int = 0,
    ) -> None:
        """`messages`: the types of commands that may overtake a backlog. `ready` is set when some were read ahead.

        `reached`: the last command that the consumer had delivered before, to anyone.
        """
        self.number = number
        self.epochs = epochs
        self.buffer = Buffer(batch_bytes)
        self.returned = Returned(batch_bytes)
        self.lane = ExpressLane(
            consumer,
            subjects,
            epochs,
            messages,
            ready,
            batch_bytes=batch_bytes,
            returned=self.returned,
            reached=reached,
        )
        self._subjects = subjects
        self._read_ahead = False
        """Whether the express lane handed out the last batch."""
        self._overtaking: set[int] = set()
        """The sequences of the last batch that have overtaken others in the buffer, or those that were put back."""

    @property
    def has_commands(self) -> bool:
        """Whether commands of the consumer can be handed out."""
        return bool(self.returned or self.buffer)

    @property
    def newest(self) -> Received | None:
        """The newest command that has arrived or was read ahead, handled or not."""
        arrived = [command for command in (self.buffer.newest, self.lane.newest) if command is not None]
        return Received(self.epochs.newest.epoch, max(arrived)) if arrived else None

    def contains(self, delivery: Delivery) -> bool:
        """Return whether a delivery was handed out in this stay."""
        if delivery.handle is None:  # it was read ahead
            return self.epochs.position(delivery.position.sequence) == delivery.position
        handle: Handle = delivery.handle
        return handle.stay == self.number

    def observe_end(self) -> bool:
        """Observe that the last batch has been handled. Return whether it took long, and others may wait since.

        Only batches of the consumer count. After one of the express lane, the buffer has its turn: slow commands that
        are read ahead, each while the last one is handled, would keep it waiting for ever.
        """
        if self._read_ahead or self.returned or not self.buffer:  # `put_back` has observed it, or nothing waits
            return False
        return self.lane.observe_end(next_tenant=self._tenant_of(self.buffer.first))

    def take_ahead(self, limit: int) -> list[Delivery]:
        """Take commands that were read ahead, but not twice in a row while others wait that were put back."""
        self._read_ahead = not (self.returned and (self._read_ahead or self.returned.is_full))
        ahead = self.lane.take(limit) if self._read_ahead else []
        self._read_ahead = bool(ahead)
        return ahead

    def take(self, limit: int) -> tuple[list[Delivery], list[Delivery]]:
        """Take a batch. Return it, and commands that the consumer delivered after they were handled ahead of it."""
        is_full = self.returned.is_full
        batch = self.returned.take(limit)
        again = {delivery.position.sequence: delivery for delivery in batch}
        done: list[Delivery] = []
        used = sum(delivery.size for delivery in batch)
        end: int | None = None
        taken = [] if self.returned else self.buffer.take(limit - len(batch), used=used)
        room = 0 if is_full else limit - len(batch) - len(taken)
        others = self.buffer.take_others(room, self._tenant_of, self.returned.holds, first_waits=not self.returned)
        # What is in the batch already overtakes nothing: the server has delivered it again.
        self._overtaking = {stored.receipt.sequence for stored in others} - again.keys()
        self._overtaking -= {stored.receipt.sequence for stored in taken}
        for number, stored in enumerate((*taken, *others)):
            sequence = stored.receipt.sequence
            end = max(end or 0, sequence + stored.receipt.waiting)
            delivery = stored.delivery(self.epochs, self._subjects, Handle(stored.reply, self.number))
            if sequence in again:  # it was read ahead, or the server delivered it again
                again[sequence].handle = delivery.handle
            elif self.lane.forget_handled(sequence, delivery.stored_at):
                done.append(delivery)
                continue
            else:
                batch.append(delivery)
            self.lane.record_delivered(delivery, overtakes=number >= len(taken))
        behind = self.buffer.waiting + len(self.buffer) + len(self.returned)
        self.lane.observe(batch, behind=behind, end=end)
        return batch, done

    def _tenant_of(self, message: StoredMessage) -> str:
        return self._subjects.address(Kind.COMMAND, message.subject).tenant

    def record_handled(self, deliveries: Sequence[Delivery]) -> None:
        """Record that deliveries are settled, so that those that were read ahead are not handled again."""
        self.returned.record_served({each.address.tenant for each in deliveries})
        self.lane.record_handled([each for each in deliveries if each.handle is None and self.contains(each)])

    def retry(self, deliveries: Sequence[Delivery], delay: timedelta) -> None:
        """Record that deliveries are retried after a delay. Their tenants have had their turn."""
        self.returned.record_served({each.address.tenant for each in deliveries})
        self.lane.retry([each for each in deliveries if self.contains(each)], delay)

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """Take back deliveries of the last batch that were not handled."""
        known = [delivery for delivery in deliveries if self.contains(delivery)]
        overtaking: list[Delivery] = []
        others: list[Delivery] = []
        for each in known:
            has_overtaken = self._read_ahead or each.position.sequence in self._overtaking
            (overtaking if has_overtaken else others).append(each)
        self.returned.put(others, overtaking)
        self.lane.observe_rest(0 if self._read_ahead else len(deliveries))
