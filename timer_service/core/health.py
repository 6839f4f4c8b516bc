"""Whether the service can use its broker and its database, and why not."""

from typing import NamedTuple


class Health(NamedTuple):
    """The health of a broker or a database."""

    usable: bool = True
    """Whether a call can succeed now."""
    reason: str | None = None
    """What is wrong, for people; None if nothing is. A broker that denies one permission is usable and has a reason."""

    @classmethod
    def down(cls, reason: str) -> "Health":
        """Return the health of a broker or a database that cannot be used."""
        return cls(usable=False, reason=reason)


HEALTHY = Health()
