"""How much each tenant may have at most."""

from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import BaseModel, ByteSize, ConfigDict, Field, WrapValidator

from timer_service.core.values.message import Tenant

_MOST = 10**15
"""Larger than any database. Sums of such numbers stay far below the largest number of a database."""


def _size(value: object, read: Callable[[object], ByteSize]) -> ByteSize:
    """Read a number of bytes. `ByteSize` alone would take `true` and `1.5`, too."""
    try:
        if isinstance(value, bool | float):
            raise ValueError(value)  # noqa: TRY004, TRY301 - reported like every wrong value
        return read(value)
    except ValueError as error:
        raise ValueError("must be a whole number, or a text such as '1GiB'") from error


_Count = Annotated[int, Field(strict=True, ge=0, le=_MOST)]
_Size = Annotated[ByteSize, WrapValidator(_size), Field(le=_MOST)]


class Limits(BaseModel):
    """The limits of one tenant; None means no limit. The names are those in the file of `TIMER_LIMITS_FILE`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pending_timers: _Count | None = None
    """The timers that fire later. Timers that are due do not count."""
    stored_data: _Size | None = None
    """The `data` of its timers, settled ones included, as far as one has more than 1,000 characters."""
    open_signals: _Count | None = None
    """The signals that have not ended."""
    schedules: _Count | None = None
    """The schedules that are active or paused."""
    open_backfills: _Count | None = None
    """The backfills of schedules that have not ended."""
    open_runs: _Count | None = None
    """The runs that are running."""
    run_rows: _Count | None = None
    """The jobs, groups and needs of its running runs, as stored."""
    early_commands: _Size | None = None
    """The pending commands, which wait for the StartRun of their run or for a ResolveGroup."""
    open_workflows: _Count | None = None
    """The workflows that have not ended."""
    workflow_data: _Size | None = None
    """The inputs, results and waiting messages of its workflows, as far as one has more than 1,000 bytes."""
    published_events: _Size | None = None
    """The bytes of events that it may publish at once. They come back within the `max_age` of the events' stream."""

    parked_events: _Count | None = None
    """The events that its consumers have parked."""

    def amount(self, name: str) -> int | None:
        """Return the limit of a name."""
        limit: int | None = getattr(self, name)
        return limit


class TenantLimits(BaseModel):
    """The limits of all tenants: those of `default`, unless the tenant is in `tenants`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    default: Limits = Limits()
    tenants: Mapping[Tenant, Limits] = {}

    def of(self, tenant: str) -> Limits:
        """Return the limits of a tenant."""
        return self.tenants.get(tenant, self.default)


DEFAULT_LIMITS = TenantLimits()
