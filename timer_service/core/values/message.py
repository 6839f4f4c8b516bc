"""The values that make up messages: positions, the envelope, commands and events."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, StrictInt, StringConstraints, WrapValidator
from pydantic.alias_generators import to_camel

from timer_service.core.values.address import IDENTIFIER_PATTERN, TENANT_PATTERN, TOPIC_PATTERN, Address
from timer_service.core.values.stored_json import RawJson

Tenant = Annotated[str, StringConstraints(pattern=TENANT_PATTERN)]
Identifier = Annotated[str, StringConstraints(pattern=IDENTIFIER_PATTERN)]
Topic = Annotated[str, StringConstraints(pattern=TOPIC_PATTERN)]


class Position(NamedTuple):
    """The position of a command in its stream. A recreated stream has a later epoch, so its commands are newer."""

    epoch: int
    sequence: int


STRICT_CAMEL_CASE = ConfigDict(
    alias_generator=to_camel,
    validate_by_name=True,
    validate_by_alias=True,
    serialize_by_alias=True,
    extra="forbid",
)
"""Names are camelCase on the wire, and unknown fields are rejected."""


class Payload(BaseModel):
    """The payload of a message type. It is camelCase on the wire, and unknown fields are rejected."""

    model_config = ConfigDict(**STRICT_CAMEL_CASE, frozen=True)

    type: ClassVar[str]
    """The name of the type in messages. By default, it is the name of the class."""
    has_topic: ClassVar[bool] = False
    """Whether an event of this type can have a topic."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Set the type, unless the class sets it, or has a field of this name."""
        if "type" not in vars(cls) and "type" not in cls.model_fields:
            cls.type = cls.__name__


class TenantPayload(Payload):
    """A payload that names its tenant. A command may omit the tenant; decoding copies it from the envelope."""

    is_operator_action: ClassVar[bool] = False
    """Whether a handled command of this type is written to the audit log."""

    tenant_id: Tenant

    @classmethod
    def decode_plain(cls, _body: bytes) -> "PlainCommand | None":
        """Return the command of a usual body without the models, if the type has such a decoder; None: use the models.

        It accepts no body that the models refuse.
        """
        return None


class CommandPayload(Protocol):
    """The payload of a decoded command: a `TenantPayload`, or what `decode_plain` makes instead of one."""

    @property
    def type(self) -> str:
        """The type of the command."""

    @property
    def is_operator_action(self) -> bool:
        """See `TenantPayload.is_operator_action`."""

    @property
    def tenant_id(self) -> str:
        """The tenant of the command."""


PlainCommand = tuple[str | None, str | None, CommandPayload]
"""What `TenantPayload.decode_plain` finds in a body: the ids of command and correlation, and the payload."""


def _keep(payload: object, check: Callable[[object], dict[str, Any]]) -> dict[str, Any]:
    """Return a payload without the copy that the model makes, which takes 10 ms for 100,000 fields."""
    return payload if isinstance(payload, dict) else check(payload)


JsonObject = Annotated[dict[str, Any], WrapValidator(_keep)]


class Envelope(BaseModel):
    """The body of every command and event. Unknown envelope fields are ignored, so that v1 can get new fields."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)

    id: Identifier | None = None
    type: Identifier
    tenant_id: Tenant
    correlation_id: Identifier | None = None
    causation_id: Identifier | None = None
    timestamp_ms: StrictInt | None = None
    payload: JsonObject


class Trace(NamedTuple):
    """The W3C trace context of a command, which its events carry too."""

    traceparent: str | None = None
    tracestate: str | None = None


class Command(NamedTuple):
    """A decoded command. Its payload is valid, and its tenant equals the tenant of its address."""

    id: str
    payload: CommandPayload
    position: Position
    correlation_id: str | None
    trace: Trace
    reply_to: str | None
    stored_at: int = 0
    """The command time: when the broker stored the command, in Unix milliseconds, rounded up; 0 if not known."""

    @property
    def tenant(self) -> str:
        """The owner of every row that this command reads or writes."""
        return self.payload.tenant_id


class Event(NamedTuple):
    """Something that happened, to be published to `tenant`. The id is the same each time the event is published."""

    id: str
    type: str
    tenant: str
    payload: Mapping[str, Any] | RawJson
    """As on the wire. Not a model, because building and dumping a model costs 15 us, a third of the time to fire."""
    timestamp_ms: int
    correlation_id: str | None = None
    causation_id: str | None = None
    trace: Trace = Trace()
    topic: str | None = None


class Message(NamedTuple):
    """An encoded message for the broker. A broker that deduplicates drops a second message with the same id."""

    address: Address
    id: str
    body: bytes
    headers: Mapping[str, str]
