"""The names of exchanges, queues and streams with one prefix, and the routing keys of addresses."""

from dataclasses import dataclass
from functools import lru_cache

from timer_service.core.values.address import Address, Kind


@dataclass(frozen=True, slots=True)
class Names:
    """The names with one prefix, such as `timer`."""

    prefix: str

    def exchange(self, kind: Kind) -> str:
        """Return the topic exchange of a kind. The queue of queries, or of requests of workers, has the same name."""
        return f"{self.prefix}.{kind}"

    def stream(self, kind: Kind) -> str:
        """Return the stream that stores a kind."""
        return f"{self.prefix}.{kind}.log"

    @property
    def owner(self) -> str:
        """The queue that names the database which reads the commands."""
        return f"{self.stream(Kind.COMMAND)}.owner"

    @property
    def hints(self) -> str:
        """The fan-out exchange of wake-up hints."""
        return f"{self.prefix}.wake"


@lru_cache(maxsize=1024)
def write_key(address: Address) -> str:
    """Return the routing key of an address: `<tenant>.<message>`, and `.<topic>` behind it if there is one."""
    return ".".join(filter(None, address[1:]))


@lru_cache(maxsize=1024)
def read_key(kind: Kind, key: str) -> Address:
    """Return the address of a routing key. That of a key without a tenant or a message is not valid."""
    tenant, _, message = key.partition(".")
    return Address(kind, tenant, message)
