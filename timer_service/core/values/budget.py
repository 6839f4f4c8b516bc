"""The memory budget: how many bytes of messages the parts of the service may hold."""

from typing import NamedTuple

MIB = 1024 * 1024
DEFAULT_MEMORY_BYTES = 256 * MIB
LEAST_MEMORY_BYTES = 128 * MIB


class Budget(NamedTuple):
    """The limits of the parts, in bytes of messages as they are on the wire or in the database.

    Each limit is a share of the memory of the whole process. Python needs up to 24 times the bytes of a message.
    """

    batch: int
    """The commands of one batch, with their headers. A single command may have more."""
    part: int
    """The commands of one batch, or the requests of workers, that are decoded at a time. A single one may have more."""
    claim: int
    """The long texts of the rows of one claim, in characters. A single row of a tenant may have more."""
    queries: int
    """The requests and replies of all queries that wait or are answered."""
    requests: int
    """The requests of workers that wait, and in the same amount the polls that wait to be held."""
    portion: int
    """The memory of the rows and replies of the workers' requests that one transaction applies, as Python needs it."""

    @classmethod
    def of(cls, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> "Budget":
        """Return the limits for a process that may use `memory_bytes`."""
        return cls(
            batch=memory_bytes // 128,
            part=memory_bytes // 512,
            claim=memory_bytes // 128,
            queries=memory_bytes // 16,
            requests=memory_bytes // 16,
            portion=memory_bytes // 32,
        )


DEFAULT_BUDGET = Budget.of()
