"""How much each tenant may have at most."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ByteSize, ConfigDict, Field

from timer_service.core.message import Tenant

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB

_Count = Annotated[int, Field(ge=0)]


class Limits(BaseModel):
    """The limits of one tenant. The names are those in the file of `TIMER_LIMITS_FILE`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pending_timers: _Count = 1_000_000
    """The timers that are still to fire."""
    stored_data: ByteSize = ByteSize(_GIB)
    """The `data` of its timers, settled ones included, as far as one has more than 1,000 characters."""
    open_signals: _Count = 100_000
    """The signals that have not ended."""
    open_runs: _Count = 10_000
    """The runs that are running."""
    run_rows: _Count = 5_000_000
    """The jobs, groups and needs of its running runs."""
    early_commands: ByteSize = ByteSize(64 * _MIB)
    """The commands that were delivered before the StartRun of their run, and wait for it."""
    commands_per_second: Annotated[float, Field(gt=0)] = 20_000
    """The commands that are handled in a second. More of them wait."""

    def amount(self, name: str) -> int:
        """Return the limit of a name."""
        limit: int = getattr(self, name)
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
