"""The settings of a worker."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from timer_service.worker.definition import WorkflowFunction


@dataclass(frozen=True)
class Settings:
    """What the parts of a worker have to know. Times are in seconds."""

    tenant: str
    workflows: Mapping[str, WorkflowFunction]
    queue: str = "default"
    name: str | None = None
    slots: int = 100
    lease_seconds: float = 30
    wait_seconds: float = 10
    """How long the service holds a poll."""
    shutdown_seconds: float = 20
    """How long steps may take to finish after the worker was stopped."""
    worker_id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def request_seconds(self) -> float:
        """How long to wait for a reply before the request is repeated."""
        return min(5, self.lease_seconds / 3)
