"""The puller: asks the server for commands, and receives them."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from timer_service.adapters.nats.durable import DURABLE, DurableConsumer
from timer_service.adapters.nats.headers import RawHeaders, decode_text
from timer_service.adapters.nats.inbox import PullInbox
from timer_service.adapters.nats.intake_client import IntakeClient, ReadMessage
from timer_service.adapters.nats.lost_answers import LostAnswers
from timer_service.adapters.nats.pulls import PULL_SECONDS, Phase, Pulls
from timer_service.adapters.nats.recovery import Recovery
from timer_service.adapters.nats.settle import RETURNED, RETURNED_FOR_LATER, settle
from timer_service.adapters.nats.stay import Stay
from timer_service.adapters.nats.stored import ACKNOWLEDGEMENT, StoredMessage
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.values.message import Kind

log = logging.getLogger(__name__)

_SHORT_WAIT_SECONDS = 0.3
_ACKNOWLEDGEMENT = ACKNOWLEDGEMENT.encode()


class Puller:
    """Reports what happens to `pulls`, which has the table of the states. It puts commands into the buffer of the stay.

    After an empty command, commands may be lost on their way from the server. They are found and come again, see
    `lost_answers`.
    """

    def __init__(
        self,
        client: IntakeClient,
        subjects: Subjects,
        consumer: DurableConsumer,
        *,
        batch_bytes: int,
        stay: Callable[[], Stay],
        on_lost: Callable[[str], None],
    ) -> None:
        """`stay` returns the stay of commands that arrive. `on_lost` gets the reason if the consumer is gone."""
        self._client = client
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{subjects.stream(Kind.COMMAND)}.{DURABLE}"
        self._batch_bytes = batch_bytes
        self._stay = stay
        self._on_lost = on_lost
        self._inbox = PullInbox(client, self._receive)
        self._pulls = Pulls()
        self._uncounted = 0
        """How many commands have arrived that were not reported to the pulls."""
        self.arrived = asyncio.Event()
        """Set when commands have arrived, or when something else may have to be done."""
        self.recovery = Recovery(
            client,
            consumer,
            self._inbox,
            give_back=lambda replies: settle(client, replies, RETURNED),
            is_joined=lambda: not self.is_lost,
            on_found=self._end_cut,
        )

    @property
    def is_lost(self) -> bool:
        """Whether the consumer must be joined before commands can be handed out or settled."""
        return self._pulls.phase is Phase.LOST

    @property
    def is_open(self) -> bool:
        """Whether messages can arrive."""
        return self._inbox.is_open

    @property
    def refusal(self) -> str | None:
        """Why the server refused the newest pull; None if it did not."""
        return self._pulls.refusal

    async def open(self) -> None:
        """Begin to receive."""
        await self._inbox.open()

    async def close(self) -> None:
        """Stop receiving."""
        self.recovery.cancel()
        await self._inbox.close()

    def joined(self) -> None:
        """The consumer was joined."""
        self._pulls = self._pulls.joined()

    def lose(self) -> None:
        """The consumer must be joined again."""
        self._pulls = self._pulls.lost()
        self.arrived.set()

    async def leave_stream(self) -> None:
        """Receive nothing more of the last stream. Commands on their way would get the epoch of the next one."""
        self.recovery.forget()
        await self._inbox.replace()

    def may_receive(self) -> bool:
        """Return whether commands of a pull may still arrive."""
        self._pulls = self._pulls.at(time.monotonic())
        return self._pulls.phase in {Phase.PULLING, Phase.CUT}

    def must_pull(self, limit: int) -> bool:
        """Return whether to pull now: no pull is outstanding, and less than a batch is buffered."""
        self._pulls = self._pulls.at(time.monotonic())
        return self._pulls.phase is Phase.IDLE and not self._stay().buffer.fills_batch(limit)

    async def prepare(self) -> None:
        """Replace the inbox if the server remembers too many requests."""
        if self._inbox.must_be_replaced:
            await self._inbox.replace()

    async def pull(self, limit: int) -> None:
        """Send a pull, unless one is outstanding already."""
        if self._pulls.phase is not Phase.IDLE:
            return
        demand = self._pulls.demand(limit, self._batch_bytes, time.monotonic())
        request: dict[str, int] = {"batch": demand.batch, "expires": PULL_SECONDS * 1_000_000_000}
        if demand.max_bytes is not None:
            request["max_bytes"] = demand.max_bytes
        self._pulls = self._pulls.sent(demand, time.monotonic())
        body = json.dumps(request).encode()
        await self._inbox.request(self._subject, body, pull=self._pulls.number, times=demand.requests)

    async def wait(self, *, soon: bool = False) -> bool:
        """Wait until something arrives, but not for long, or even shorter. Return whether it did."""
        self.arrived.clear()
        is_short = soon or self._pulls.phase in {Phase.LOST, Phase.PAUSED}
        try:
            async with asyncio.timeout(_SHORT_WAIT_SECONDS if is_short else PULL_SECONDS):
                await self.arrived.wait()
        except TimeoutError:
            return False
        return True

    def _receive(self, messages: Sequence[ReadMessage]) -> Awaitable[None] | None:
        """Take messages of the inbox. Only the server can send one with the subject of a command there.

        If the consumer must be joined again, return what gives the commands back.
        """
        reader_is_awake = bool(self._stay().buffer)
        returned: list[str] = []
        for message in messages:
            try:
                self._receive_one(message, returned)
            except Exception:
                about = {"subject": decode_text(message.subject[:200])}
                log.exception("a message could not be processed", extra=about)
        self._count_arrived()
        if not (self._pulls.outstanding and reader_is_awake):
            self.arrived.set()
        return settle(self._client, returned, RETURNED_FOR_LATER) if returned else None

    def _receive_one(self, message: ReadMessage, returned: list[str]) -> None:
        """Take a message. Adds its reply subject to `returned` if it is a command that comes too early or too late."""
        if self._inbox.contains(message.subject):
            self._count_arrived()
            self._receive_status(decode_text(message.subject), message)
            self.arrived.set()
        elif message.reply.startswith(_ACKNOWLEDGEMENT):
            try:
                stored = StoredMessage.delivered(message)
            except ValueError:
                about = {"subject": decode_text(message.subject)}
                log.warning("ignored a message that the consumer did not deliver", extra=about)
            else:
                self._receive_command(stored, returned)

    def _receive_command(self, stored: StoredMessage, returned: list[str]) -> None:
        """Buffer a command. If the deliveries are counted again, another consumer delivers, perhaps another stream."""
        buffer = self._stay().buffer
        if stored.receipt.delivery <= buffer.last_delivery:
            self._count_arrived()
            self._on_lost("the consumer was created again")
        if self._pulls.phase is Phase.LOST:  # the command comes again, perhaps with another epoch
            self.arrived.set()
            returned.append(stored.reply)
            return
        buffer.append(stored)
        self._uncounted += 1
        if not stored.headers.size and not stored.body:
            self._count_arrived()
            self._receive_empty(stored)
        if self.recovery.goes_on:
            self.recovery.arrive(stored.receipt)

    def _count_arrived(self) -> None:
        """Report the commands that have arrived to the pulls. For each command alone, this takes 0.5 µs."""
        self._pulls = self._pulls.commands(self._uncounted)
        self._uncounted = 0

    def _receive_empty(self, stored: StoredMessage) -> None:
        """Receive a command without headers and body. The server may have dropped the rest of the pull's answer."""
        before = self._pulls.phase
        self._pulls = self._pulls.empty(time.monotonic())
        if self._pulls.phase is Phase.CUT and before is not Phase.CUT:
            buffer = self._stay().buffer
            newest = buffer.newest.sequence if buffer.newest else 0
            self.recovery.begin(LostAnswers(stored, newest, buffer.arrived))

    def _end_cut(self) -> None:
        self._pulls = self._pulls.found()
        self.arrived.set()

    def _receive_status(self, subject: str, message: ReadMessage) -> None:
        headers = RawHeaders(message.headers)
        code = headers.get("Status")
        number = subject.rpartition(".")[2]
        if not code or not number.isdecimal():
            log.debug("ignored a message in the inbox of pulls", extra={"subject": subject})
            return
        before = self._pulls
        description = headers.get("Description") or ""
        self._pulls = before.status(int(number), code, description, time.monotonic())
        if self.is_lost and before.phase is not Phase.LOST:
            self._on_lost(f"{code} {description}".strip())
        if self._pulls.refusal is not None and self._pulls.refusal != before.refusal:
            log.warning("the broker refuses to deliver commands", extra={"reason": self._pulls.refusal})
