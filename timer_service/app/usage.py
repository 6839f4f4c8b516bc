"""The query about what a tenant uses of its limits."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from timer_service.core.limits.quotas import Usage
from timer_service.core.limits.tenant_limits import TenantLimits
from timer_service.core.ports.database import Reader
from timer_service.core.requests.query import QueryRoute
from timer_service.core.values.message import Payload
from timer_service.core.values.stored_json import omit_none

_MOST_COUNTED = 1_000_000


class GetUsage(Payload):
    """Ask what the tenant uses of its limits."""


class LimitUsage(Payload):
    """How much of one limit the tenant uses."""

    limit: str = Field(description="The name of the limit, as in TIMER_LIMITS_FILE.")
    used: int = Field(ge=0, description="Counting stops one above `most`, or at 1,000,000 if there is no limit.")
    most: int | None = Field(default=None, ge=0, description="Missing if there is no limit.")


class TenantUsage(Payload):
    """What a tenant uses of each of its limits."""

    usage: list[LimitUsage]


def usage_query(limits: TenantLimits, usages: Sequence[Usage]) -> QueryRoute:
    """Return the query `get-usage`."""

    async def answer(reader: Reader, tenant: str, _request: GetUsage, now: int) -> Mapping[str, Any]:
        of_tenant = limits.of(tenant)
        found: list[Mapping[str, Any]] = []
        for usage in usages:
            most = of_tenant.amount(usage.limit)
            stop_at = _MOST_COUNTED if most is None else most + 1
            used = await usage.amount_of(reader, tenant, now, stop_at)
            found.append({"limit": usage.limit, "used": used, **omit_none(most=most)})
        return {"usage": found}

    return QueryRoute("get-usage", GetUsage, TenantUsage, answer)
