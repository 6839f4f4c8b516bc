"""Tests of workflow functions without a broker, a service and a database, in simulated time."""

from timer_service.worker.testing.simulated import SimulatedWorkflow

__all__ = ["SimulatedWorkflow"]
