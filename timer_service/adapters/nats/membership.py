"""The membership in the durable consumer: which stream its commands are of, and whether this process still has them."""

import asyncio
import logging
import time
from collections.abc import Collection

import nats.errors
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError

from timer_service.adapters.nats.durable import DurableConsumer
from timer_service.adapters.nats.holding import TakenOverError
from timer_service.adapters.nats.intake_client import IntakeClient
from timer_service.adapters.nats.puller import Puller
from timer_service.adapters.nats.redelivery import Redelivery
from timer_service.adapters.nats.stay import Stay
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.intake.epochs import Epochs
from timer_service.core.ports.broker import History
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.values.error_text import error_text
from timer_service.core.values.errors import ConflictError, DatabaseUnavailableError, StartError
from timer_service.core.values.message import Kind

log = logging.getLogger(__name__)

_REJOIN_SECONDS = 0.5
_LOOK_AHEAD_AFTER = 0.1
"""How old a look may be when a batch is handed out: it must still be new enough when the batch is settled."""
_BUSY_SECONDS = 5
"""For how long a look may stay without an answer: a broker under load answers late."""
_OUTAGES = (nats.errors.Error, JetStreamError, OSError, DatabaseUnavailableError, ConflictError, ValueError, KeyError)
"""What joining may raise while the broker or the database cannot be used, or answers with nonsense."""


class Membership:
    """Joins the consumer, and joins again after it was lost. A new stay begins if the stream is another one then.

    If it is opened with `alone`, each join shortens `ack_wait` of the consumer, so that commands come again soon that a
    dead instance or a lost connection has not settled. It is restored when all have come, after 5 s, or on `close`.
    It also looks whether another process has taken over the commands.
    """

    def __init__(
        self,
        client: IntakeClient,
        subjects: Subjects,
        consumer: DurableConsumer,
        history: History,
        *,
        messages: Collection[str],
        batch_bytes: int,
    ) -> None:
        """`messages`: the types of commands that may overtake a backlog. `batch_bytes`: the most bytes of a batch."""
        self._client = client
        self._subjects = subjects
        self._history = history
        self._messages = messages
        self._batch_bytes = batch_bytes
        self._alone = False
        self._join_lock = asyncio.Lock()
        self._joined_at = 0.0
        self._why_lost = ""
        self._losses = 0
        self.consumer = consumer
        self.joins = 0
        """How often the consumer was joined."""
        self.stay: Stay
        """The current stay, or the last one while the consumer is lost."""
        self.redelivery: Redelivery | None = None
        """The redelivery of commands that were in flight, while `ack_wait` is shortened."""
        self.look: asyncio.Task[bool] | None = None
        """The newest look ahead."""
        self.puller = Puller(
            client, subjects, consumer, batch_bytes=batch_bytes, stay=lambda: self.stay, on_lost=self.lose
        )

    @property
    def health(self) -> Health:
        """Down while no commands can be delivered."""
        if self.puller.is_lost:
            return Health.down(f"not subscribed to the commands: {self._why_lost or 'joining'}")
        if self.puller.refusal is not None:
            return Health.down(f"the broker refuses to deliver commands: {self.puller.refusal}")
        return HEALTHY

    @property
    def is_taken_over(self) -> bool:
        """Whether another process has taken over the commands."""
        return self.consumer.holding.taken_over.is_set()

    async def open(self, *, alone: bool) -> bool:
        """Join, and begin to receive. Return whether commands are in flight. `alone`: no other instance can hold any.

        Raises `StartError` and the errors of JetStream and of the database.
        """
        self._alone = alone
        await self._join(None)
        in_flight = bool((await self.consumer.info())["num_ack_pending"])
        await self.puller.open()
        return in_flight

    def lose(self, reason: str) -> None:
        """Hand out and settle nothing before the consumer was joined again."""
        self._why_lost = reason
        self._losses += 1
        self.puller.lose()

    def rejoin_soon(self) -> None:
        """Do not wait before the next attempt to join."""
        self._joined_at = 0.0
        self.puller.arrived.set()

    async def rejoin(self) -> None:
        """Try to join again, at most twice a second."""
        async with self._join_lock:
            if not self.puller.is_lost or not self._client.is_connected or self.is_taken_over:
                return
            if time.monotonic() < self._joined_at + _REJOIN_SECONDS:
                return
            self._joined_at = time.monotonic()
            try:
                await self._join(self.stay)
            except StartError as error:  # the consumer belongs to another database
                self._report(str(error))
            except NotFoundError:
                self._report(f"stream {self._subjects.stream(Kind.COMMAND)} is missing")
            except nats.errors.TimeoutError:
                self._report("JetStream does not answer")
            except _OUTAGES as error:
                self._report(error_text(error))

    async def _join(self, before: Stay | None) -> None:
        """Join the consumer. Begin a new stay unless the stream and the epoch are the same as before.

        It must be joined once more if the connection was lost meanwhile: the stream can be another one since then.
        """
        losses = self._losses
        epochs = await self.consumer.join(self._history, before.newest if before else None, alone=self._alone)
        if before is None:
            self._begin_stay(1, epochs, await self.consumer.last_delivered())
        elif epochs.newest[:3] != before.epochs.newest[:3]:
            before.lane.close()
            log.warning("the command stream is another one now", extra={"epoch": epochs.newest.epoch})
            reached = await self.consumer.last_delivered()
            await self.puller.leave_stream()
            self._begin_stay(before.number + 1, epochs, reached)
        in_flight = await self.consumer.shorten_ack_wait() if self._alone else None
        self.redelivery = in_flight and Redelivery(in_flight)
        self.stay.buffer.last_delivery = 0  # another leader may count from an earlier one
        self.joins += 1
        if self._losses == losses:
            self.puller.joined()

    def _begin_stay(self, number: int, epochs: Epochs, reached: int) -> None:
        self.stay = Stay(
            number,
            epochs,
            self.consumer,
            self._subjects,
            messages=self._messages,
            batch_bytes=self._batch_bytes,
            ready=self.puller.arrived,
            reached=reached,
        )
        self.stay.lane.start()

    def _report(self, reason: str) -> None:
        if reason != self._why_lost:
            log.warning("cannot join the consumer of commands; trying again", extra={"reason": reason})
        self.lose(reason)

    async def confirm(self, within: float) -> bool:
        """Return whether the commands are still those of this process, as seen in the last `within` seconds."""
        if self.puller.is_lost:
            return False
        try:
            if await self.consumer.confirm(within):
                return not self.puller.is_lost
            self.lose("the metadata of the consumer was changed")
        except TakenOverError as error:
            self._report(str(error))
        except NotFoundError:
            self.lose("the consumer is gone")
        except nats.errors.TimeoutError:
            if self.consumer.holding.is_confirmed(_BUSY_SECONDS):
                return not self.puller.is_lost
            self.lose("JetStream does not answer")
        except _OUTAGES as error:
            self.lose(error_text(error))
        return False

    def look_ahead(self) -> None:
        """Look while the caller handles a batch, so that to settle the batch need not wait for a look."""
        looks = self.look is not None and not self.look.done()
        if not looks and not self.consumer.holding.is_confirmed(_LOOK_AHEAD_AFTER):
            self.look = asyncio.create_task(self.confirm(_LOOK_AHEAD_AFTER), name="look-ahead")

    async def end_redelivery(self, *, at_once: bool = False) -> None:
        """Restore `ack_wait` if all commands that were in flight have come, or at once."""
        if self.redelivery is None or not (at_once or self.redelivery.is_over()):
            return
        try:
            await self.consumer.restore_ack_wait()
        except (nats.errors.Error, JetStreamError, OSError, TakenOverError) as error:
            log.warning("could not restore the ack_wait of the consumer", extra={"reason": error_text(error)})
            return
        self.redelivery = None

    def stop(self) -> None:
        """Look and read ahead no more."""
        self.stay.lane.close()
        if self.look is not None:
            self.look.cancel()
