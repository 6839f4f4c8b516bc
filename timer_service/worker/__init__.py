"""Durable functions: workflows and the worker that executes them (see docs/workflows.md)."""

from timer_service.client.retry import Retry
from timer_service.worker.context import Context
from timer_service.worker.definition import WorkflowFunction, workflow
from timer_service.worker.errors import (
    Interrupted,
    NonDeterministicError,
    NotInWorkflowError,
    PermanentError,
    RetryAfter,
    StepFailed,
)
from timer_service.worker.worker import Worker

__all__ = [
    "Context",
    "Interrupted",
    "NonDeterministicError",
    "NotInWorkflowError",
    "PermanentError",
    "Retry",
    "RetryAfter",
    "StepFailed",
    "Worker",
    "WorkflowFunction",
    "workflow",
]
