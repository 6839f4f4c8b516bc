"""Addresses <-> NATS subjects: `<prefix>.<kind>.v1.<tenant>.<message>`."""

from dataclasses import dataclass

from timer_service.core.message import Address, Kind

_VERSION = "v1"


@dataclass(frozen=True, slots=True)
class Subjects:
    """The subjects under one prefix."""

    prefix: str

    def subject(self, address: Address) -> str:
        """Return where messages of an address go."""
        return f"{self.prefix}.{address.kind}.{_VERSION}.{address.tenant}.{address.message}"

    def pattern(self, kind: Kind, message: str = "*") -> str:
        """Return the wildcard of a kind's addresses of every tenant, of one message or of all."""
        return f"{self.prefix}.{kind}.{_VERSION}.*.{message}"

    def address(self, kind: Kind, subject: str) -> Address:
        """Read a subject that matches `pattern(kind)`."""
        _, tenant, message = subject.rsplit(".", 2)
        return Address(kind, tenant, message)

    def hint(self, loop: str = "*") -> str:
        """Return where hints for a loop go, or for all of them. No stream keeps these."""
        return f"{self.prefix}.wake.{_VERSION}.{loop}"

    def stream(self, kind: Kind) -> str:
        """Return the stream that holds a kind: `TIMER_CMD` and so on."""
        return f"{self.prefix}_{kind}".replace(".", "_").upper()
