"""NATS subjects of addresses: `<prefix>.<kind>.v1.<tenant>.<message>`, and `.<topic>` behind it if there is one."""

from dataclasses import dataclass
from functools import lru_cache

from timer_service.core.values.address import Address, Kind
from timer_service.core.values.raw_command import decode_text

_VERSION = "v1"


@dataclass(frozen=True, slots=True)
class Subjects:
    """The subjects with one prefix."""

    prefix: str

    def subject(self, address: Address) -> str:
        """Return the subject of an address."""
        kind, tenant, message, topic = address
        subject = f"{self.prefix}.{kind}.{_VERSION}.{tenant}.{message}"
        return subject if topic is None else f"{subject}.{topic}"

    def pattern(self, kind: Kind, message: str = "") -> str:
        """Return the wildcard for all tenants of a kind, for one message type or for all."""
        return f"{self.prefix}.{kind}.{_VERSION}.*.{message or _any_message(kind)}"

    def pattern_of_tenant(self, kind: Kind, tenant: str) -> str:
        """Return the wildcard for all message types of a kind, for one tenant."""
        return f"{self.prefix}.{kind}.{_VERSION}.{tenant}.{_any_message(kind)}"

    def hint(self, loop: str = "*") -> str:
        """Return the subject of wake-up hints for a loop, or the wildcard for all loops. No stream stores hints."""
        return f"{self.prefix}.wake.{_VERSION}.{loop}"

    def stream(self, kind: Kind) -> str:
        """Return the name of the stream that stores a kind, such as `TIMER_CMD`."""
        return f"{self.prefix}_{kind}".replace(".", "_").upper()

    def tenant_commands(self, tenant: str) -> str:
        """Return the name of a tenant's own stream of commands, such as `TIMER_CMD_acme`."""
        return f"{self.stream(Kind.COMMAND)}_{tenant}"

    def tenant_events(self, tenant: str) -> str:
        """Return the name of the stream from which a tenant reads its events, such as `TIMER_EVT_acme`."""
        return f"{self.stream(Kind.EVENT)}_{tenant}"

    def intake(self, tenant: str, stream_created: int) -> str:
        """Return the subject by which commands go from a tenant's own stream to the stream of commands.

        `stream_created`: when the tenant's stream was created, in Unix nanoseconds. Another stream has another subject.
        """
        return f"{self.prefix}.intake.{_VERSION}.{tenant}.{stream_created}"


def _any_message(kind: Kind) -> str:
    """Return the wildcard for all messages of a kind. Only events can have a topic behind the message."""
    return ">" if kind is Kind.EVENT else "*"


@lru_cache(maxsize=1024)
def read_subject(kind: Kind, subject: bytes) -> tuple[str, Address]:
    """Return a subject as text, and its address if it matches `pattern(kind)`. That of another one is not valid.

    A stream can have other subjects too, and an operator can let the consumer deliver them.
    """
    text = decode_text(subject)
    *_, tenant, message = ("", *text.rsplit(".", 2))
    return text, Address(kind, tenant, message)


def covers(pattern: str, subject: str) -> bool:
    """Return whether a pattern matches everything that a subject matches. The subject may contain wildcards."""
    wanted, found = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(found) <= len(wanted):
            return False
        found = found[: len(wanted)]
    return len(wanted) == len(found) and all(
        token in {"*", part} and part != ">" for token, part in zip(wanted, found, strict=True)
    )
