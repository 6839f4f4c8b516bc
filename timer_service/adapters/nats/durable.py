"""The durable consumer of commands, which all instances share.

The service sets the consumer's settings only when it creates the consumer. After that the operator owns them. There is
one exception: after a crash the service shortens `ack_wait` for some seconds. The operator's value is kept in the
consumer's metadata. If this process dies before it restores the value, the next process to join restores it.

The metadata also names the database of the service. A service with another database does not join, because the two
would divide the commands between them. It names the epoch of the stream for which the consumer counts. And during a
replay it names the request of the replay, so that a second join does not begin again. If processes cannot share the
database, it names the process that handles the commands, see `holding`.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from nats.aio.client import Client
from nats.js.errors import NotFoundError

from timer_service.adapters.nats.api import request
from timer_service.adapters.nats.holding import HOLDER, Holding, holder
from timer_service.adapters.nats.listing import Listing, list_subjects
from timer_service.adapters.nats.stored import nanoseconds
from timer_service.adapters.nats.subjects import Subjects
from timer_service.adapters.nats.take_over import check_unused
from timer_service.core.intake.epochs import Epochs, Received, StoredCommand, StreamState
from timer_service.core.intake.installation import Installation, Replay
from timer_service.core.ports.broker import History
from timer_service.core.values.errors import ConflictError, StartError
from timer_service.core.values.message import Kind

DURABLE = "timer-service"
"""The name of the consumer."""

# Longer than the longest commit: otherwise commands are handled twice for no reason. Not much longer: the commands of a
# killed instance wait this long.
_ACK_WAIT = timedelta(seconds=30)
_MAX_ACK_PENDING = 20_000
# Longer than a batch takes, so that few commands are handled twice while it applies.
_SHORT_ACK_WAIT = timedelta(milliseconds=500)
_SAVED_ACK_WAIT = "timer-service.ack-wait"
"""The metadata key that holds the operator's `ack_wait` while it is shortened."""
_DATABASE = "timer-service.database"
_EPOCH = "timer-service.epoch"
_REPLAY = "timer-service.replay"
_NANOSECONDS_PER_MILLISECOND = 1_000_000

_Config = Mapping[str, Any]


class InFlight(NamedTuple):
    """The commands that were delivered and not settled."""

    number: int
    last: int
    """The last sequence that was ever delivered. A command up to this sequence is delivered again."""


class DurableConsumer:
    """The consumer `timer-service` of the command stream."""

    def __init__(self, client: Client, subjects: Subjects) -> None:
        self._client = client
        self._pattern = subjects.pattern(Kind.COMMAND)
        self._stream = subjects.stream(Kind.COMMAND)
        self.holding = Holding(self._stream)
        """Whether this process still has the commands, if it joined with `alone`."""

    async def stream(self) -> Mapping[str, Any]:
        """Return the JetStream info of the command stream."""
        return await self._request(f"STREAM.INFO.{self._stream}")

    async def info(self) -> Mapping[str, Any]:
        """Return the JetStream info of the consumer. Raises `NotFoundError` if it does not exist."""
        return await self._request(f"CONSUMER.INFO.{self._stream}.{DURABLE}")

    async def last_delivered(self) -> int:
        """Return the sequence of the newest command that the consumer has ever delivered, or before which it begins."""
        delivered: int = (await self.info())["delivered"]["stream_seq"]
        return delivered

    @property
    def largest_body(self) -> int:
        """The most bytes that the body of a command may have."""
        return self._client.max_payload

    async def subjects(self, pattern: str) -> Listing:
        """Return the subjects of the stored commands that match, with their numbers; at most 100,000 subjects."""
        return await list_subjects(self._client, self._stream, pattern)

    async def read(self, sequence: int, subject: str = ">") -> Mapping[str, Any] | None:
        """Return the first stored message at a sequence or after it, with a subject; None if there is none."""
        try:
            answer = await self._request(f"STREAM.MSG.GET.{self._stream}", {"seq": sequence, "next_by_subj": subject})
        except NotFoundError:
            return None
        message: Mapping[str, Any] = answer["message"]
        return message

    async def oldest_unsettled(self) -> int | None:
        """Return when the server stored the oldest command that is not settled, in ms; None if all are settled."""
        info = await self.info()
        if not info["num_pending"] and not info["num_ack_pending"]:
            return None
        oldest = await self._find(info["ack_floor"]["stream_seq"] + 1)
        return None if oldest is None else oldest.stored_at // _NANOSECONDS_PER_MILLISECOND

    async def confirm(self, within: float, *, seconds: float = 2) -> bool:
        """Look whether this process still has the commands, unless a look has shown it in the last `within` seconds.

        `seconds`: how long to wait for the answer. Returns False if the consumer has lost the token of this process.
        Raises `TakenOverError` if another process has taken over, and `NotFoundError` if the consumer is missing.
        """
        if self.holding.is_confirmed(within):
            return True
        looked_at = self.holding.look()
        found = await request(self._client, f"CONSUMER.INFO.{self._stream}.{DURABLE}", seconds=seconds)
        return self.holding.check(found["config"], looked_at)

    async def check_database(self, installation: Installation) -> None:
        """Raises `StartError` if the consumer exists and belongs to another database."""
        await self._find_consumer(installation)

    async def join(self, history: History, received: Received | None = None, *, alone: bool = False) -> Epochs:
        """Create the consumer if it is missing, and restore `ack_wait`. Return the epochs of the stream.

        `received`: the newest command that the consumer has delivered to this instance. `alone`: no other instance can
        share the database, so this process takes over the commands. It does that only once: later joins find its token.
        Raises `StartError` if the consumer belongs to another database, or to a service with a copy of this one, and
        `ConflictError` if the stream was replaced meanwhile.
        """
        installation = await history.installation()
        before = await self._find_consumer(installation)
        if alone:
            await self._check_take_over(before)
        epochs = await history.recognize(self._look, self._find, received)
        found = await self._find_consumer(installation)  # the database may have been slow
        if alone and holder(found and found["config"]) != holder(before and before["config"]):  # another was faster
            await self._check_take_over(found)
        marks = {_DATABASE: installation.database_id, _EPOCH: str(epochs.newest.epoch)}
        if (replay := installation.replay) is not None:
            marks[_REPLAY] = replay.id
        if alone:
            marks[HOLDER] = self.holding.token
            self.holding.begin(found and found["config"])
        # Look at the stream after the consumer: other instances go on, so an older state would seem to lack commands.
        stream = await self._look()
        last_valid = None if found is None else _last_valid(found, stream, epochs)
        metadata = {} if found is None else found["config"].get("metadata", {})
        begins_replay = replay is not None and metadata.get(_REPLAY) != replay.id
        if begins_replay or last_valid is not None or _DATABASE not in metadata:  # also if there is no consumer yet
            await history.exempt_until(epochs.position(stream.last_sequence))
        if found is None:  # it is not known which commands are settled, so a replay begins with all of them too
            await self._create(marks)
        elif replay is not None and begins_replay:
            settled = found["ack_floor"]["stream_seq"] if last_valid is None else last_valid
            await self._create_again(found["config"], marks, await self._start_of_replay(replay, settled))
        elif last_valid is not None:
            await self._create_again(found["config"], marks, _start_after(last_valid))
        else:
            await self._update_marks({**found["config"], "metadata": _without_replay(found["config"], replay)}, marks)
        if (await self._look()).created != epochs.newest.created:  # the consumer would deliver with old epochs
            raise ConflictError(f"stream {self._stream} was replaced while its consumer was joined")
        return epochs

    async def _start_of_replay(self, replay: Replay, settled: int) -> _Config:
        """Return where a replay begins: at its instant, or earlier if older commands are not settled yet."""
        unsettled = await self._find(settled + 1)
        if unsettled is not None and unsettled.stored_at < replay.since * _NANOSECONDS_PER_MILLISECOND:
            return _start_after(settled)
        return _start(replay)

    async def replays(self, replay: Replay) -> bool:
        """Return whether the consumer was created for a replay."""
        found: str | None = (await self.info())["config"].get("metadata", {}).get(_REPLAY)
        return found == replay.id

    async def forget_replay(self) -> None:
        """Remove the mark of a replay that has ended."""
        config = await self._own_config()
        await self._write("update", {**config, "metadata": _without_replay(config, None)})

    async def shorten_ack_wait(self) -> InFlight | None:
        """Shorten `ack_wait` so that unsettled commands come again soon. Return them, or None if there are none.

        Only for an instance that shares the commands with no other instance. `restore_ack_wait` ends it.
        """
        info = await self.info()
        self.holding.check(info["config"])
        if not info["num_ack_pending"]:
            return None
        config = info["config"]
        metadata = {**config.get("metadata", {}), _SAVED_ACK_WAIT: str(config["ack_wait"])}
        await self._write("update", {**config, "ack_wait": _nanoseconds(_SHORT_ACK_WAIT), "metadata": metadata})
        return InFlight(info["num_ack_pending"], info["delivered"]["stream_seq"])

    async def restore_ack_wait(self) -> None:
        """Restore `ack_wait` if this process, or one that died, has shortened it."""
        await self._update_marks(await self._own_config(), {})

    async def _own_config(self) -> _Config:
        """Return the settings of the consumer. Raises `TakenOverError` if another process may change them now."""
        config: _Config = (await self.info())["config"]
        self.holding.check(config)
        return config

    async def _update_marks(self, config: _Config, marks: Mapping[str, str]) -> None:
        """Write the marks into the metadata, and restore `ack_wait` if it is shortened, if that changes anything."""
        metadata = {**config.get("metadata", {}), **marks}
        saved = metadata.pop(_SAVED_ACK_WAIT, None)
        wanted = {**config, "metadata": metadata}
        if saved is not None:
            wanted["ack_wait"] = int(saved)
        if wanted != config:
            await self._write("update", wanted)

    async def _find_consumer(self, installation: Installation) -> Mapping[str, Any] | None:
        """Return the JetStream info of the consumer; None if it is missing. Raises `StartError` as `check_database`."""
        try:
            found = await self.info()
        except NotFoundError:
            return None
        self._check_database(found["config"], installation.database_id)
        return found

    async def _check_take_over(self, found: Mapping[str, Any] | None) -> None:
        """Raise `StartError` if another process handles the commands, or has taken them over."""
        if found is not None and not self.holding.check(found["config"]):
            await check_unused(self._stream, found, self.info)

    def _check_database(self, config: _Config, database_id: str) -> None:
        other = config.get("metadata", {}).get(_DATABASE)
        if other not in {None, database_id}:
            raise StartError(
                f"a service with another database handles the commands of stream {self._stream}. If both shall run, "
                "set another TIMER_SUBJECT_PREFIX for one of them. If this database replaces the other one, stop the "
                f"other service and delete the consumer (`nats consumer rm {self._stream} {DURABLE}`): then this "
                "service handles every command that the stream still has"
            )

    async def _create(self, marks: Mapping[str, str]) -> None:
        config = {
            "durable_name": DURABLE,
            "filter_subject": self._pattern,
            "ack_policy": "explicit",
            "ack_wait": _nanoseconds(_ACK_WAIT),
            "max_ack_pending": _MAX_ACK_PENDING,
            "metadata": marks,
            "deliver_policy": "all",
        }
        await self._write("create", config)

    async def _create_again(self, found: _Config, marks: Mapping[str, str], start: _Config) -> None:
        """Replace the consumer by one that begins elsewhere, with the operator's settings."""
        config = {name: value for name, value in found.items() if name not in {"opt_start_seq", "opt_start_time"}}
        metadata = {**config.get("metadata", {}), **marks}
        config["ack_wait"] = int(metadata.pop(_SAVED_ACK_WAIT, config["ack_wait"]))
        await self._request(f"CONSUMER.DELETE.{self._stream}.{DURABLE}")
        await self._write("create", {**config, "metadata": metadata, **start})

    async def _look(self) -> StreamState:
        return _stream_state(await self.stream())

    async def _find(self, sequence: int) -> StoredCommand | None:
        found = await self.read(sequence)
        return None if found is None else StoredCommand(found["seq"], nanoseconds(found["time"]))

    async def _write(self, action: str, config: _Config) -> None:
        """Create or update the consumer. The driver's own type would drop settings that the driver does not know."""
        body = {"stream_name": self._stream, "config": config, "action": action}
        await self._request(f"CONSUMER.DURABLE.CREATE.{self._stream}.{DURABLE}", body)

    async def _request(self, name: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        return await request(self._client, name, body)


def _without_replay(config: _Config, replay: Replay | None) -> _Config:
    """Return the metadata of a consumer without the mark of a replay that has ended."""
    metadata: _Config = config.get("metadata", {})
    return metadata if replay is not None else {name: value for name, value in metadata.items() if name != _REPLAY}


def _stream_state(info: Mapping[str, Any]) -> StreamState:
    created, state = info["created"], info["state"]
    created_ms = int(datetime.fromisoformat(created).timestamp() * 1000)
    return StreamState(created, created_ms, state["first_seq"], state["last_seq"])


def _last_valid(consumer: Mapping[str, Any], stream: StreamState, epochs: Epochs) -> int | None:
    """Return the sequence after which a consumer must begin again; None if its state is valid.

    After a rollback the consumer may count commands as delivered that the stream has lost. Commands that it has not
    settled before that must come again too.
    """
    settled: int = consumer["ack_floor"]["stream_seq"]
    delivered: int = consumer["delivered"]["stream_seq"]
    mark = consumer["config"].get("metadata", {}).get(_EPOCH)
    before_newest = epochs.newest.first_sequence - 1
    is_of_older_part = mark not in {None, str(epochs.newest.epoch)}
    if delivered > stream.last_sequence or (is_of_older_part and delivered > before_newest):
        return min(settled, before_newest, stream.last_sequence)
    return None


def _start(replay: Replay) -> _Config:
    at = datetime.fromtimestamp(replay.since / 1000, UTC).isoformat().replace("+00:00", "Z")
    return {"deliver_policy": "by_start_time", "opt_start_time": at}


def _start_after(sequence: int) -> _Config:
    if sequence < 1:
        return {"deliver_policy": "all"}
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": sequence + 1}


def _nanoseconds(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1) * 1000
