"""The addresses of the messages on each broker, as the adapters have them.

`asyncapi.py` makes its channels of them. README.md has them as a table, which a test compares with `table()`.
"""

from collections.abc import Iterator

from timer_service.adapters.nats.subjects import Subjects
from timer_service.adapters.rabbitmq.names import Names, write_key
from timer_service.adapters.rabbitmq.requests import REPLY_PREFIXES
from timer_service.core.values.address import Address, Kind
from timer_service.redis_client import Keys

_SUBJECTS, _KEYS, _NAMES = Subjects("timer"), Keys("timer"), Names("timer")
TENANT, MESSAGE, TOPIC, CONSUMER = "{tenant}", "{message}", "{topic}", "{consumer}"
"""The parts of an address that differ. The last two are the topic of an event."""
RESUBMITTED = "resubmitted"
"""The message of an event that one consumer gets again."""
FIELDS = {
    Kind.COMMAND: ["tenant", "type", "body", "id", "reply-to"],
    Kind.EVENT: ["type", "topic", "body", "id"],
    Kind.DEAD_LETTER: ["tenant", "type", "body", "id"],
    Kind.QUERY: ["tenant", "type", "body", "reply-to"],
    Kind.REQUEST: ["tenant", "type", "body", "reply-to"],
}
"""The fields of an entry on Redis. Every other field is a header."""
_PARTS = str.maketrans("{}", "<>")
_LABELS = {
    "command": Address(Kind.COMMAND, TENANT, MESSAGE),
    "event": Address(Kind.EVENT, TENANT, MESSAGE),
    "event with a [topic](#topics)": Address(Kind.EVENT, TENANT, MESSAGE, TOPIC),
    "[resubmitted](#parked-events) event": Address(Kind.EVENT, TENANT, RESUBMITTED, CONSUMER),
    "dead letter": Address(Kind.DEAD_LETTER, TENANT, MESSAGE),
    "query": Address(Kind.QUERY, TENANT, MESSAGE),
    "[request of a worker](#requests-of-workers)": Address(Kind.REQUEST, TENANT, MESSAGE),
}
_HEAD = """\
| | NATS: subject | Redis, Valkey: stream and fields | RabbitMQ: exchange and routing key |
|---|---|---|---|
"""
_DIRECT = REPLY_PREFIXES[0].removesuffix(".")
_REPLY = f"reply | a subject under `_INBOX.` | a channel under `{_KEYS.replies}` | direct reply-to, `{_DIRECT}`"
_HINT = f"hint, between instances | `{_SUBJECTS.hint('<loop>')}` | channel `{_KEYS.hints}` | exchange `{_NAMES.hints}`"


def subject(address: Address) -> str:
    """Return the subject on NATS."""
    return _SUBJECTS.subject(address)


def stream(address: Address) -> str:
    """Return the stream on Redis. The fields of its entries tell the rest."""
    return _KEYS.stream(address.kind, address.tenant if address.kind is Kind.EVENT else "")


def exchange_and_key(address: Address) -> tuple[str, str]:
    """Return the exchange and the routing key on RabbitMQ."""
    return _NAMES.exchange(address.kind), write_key(address)


def table() -> str:
    """Return the addresses as a table in Markdown, with `<tenant>` for a part that differs."""
    rows = [*_rows(), _REPLY, _HINT]
    return _HEAD + "".join(f"| {row} |\n" for row in rows).translate(_PARTS)


def _rows() -> Iterator[str]:
    for label, address in _LABELS.items():
        texts = [label, f"`{subject(address)}`", f"`{stream(address)}`: {', '.join(_fields(address))}"]
        yield " | ".join([*texts, ", ".join(f"`{each}`" for each in exchange_and_key(address))])


def _fields(address: Address) -> Iterator[str]:
    """Yield the fields of an entry on Redis, with a value that a consumer looks for."""
    values = {"type": address.message, "topic": address.topic}
    for name in FIELDS[address.kind]:
        if name != "topic" or address.topic is not None:
            yield f"`{name}` `{values[name]}`" if values.get(name) in {RESUBMITTED, CONSUMER} else f"`{name}`"
