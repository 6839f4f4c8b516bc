"""Fixtures of the soak tests: those of the end-to-end tests."""

from tests.e2e.conftest import broker, database_url, service, stored

__all__ = ["broker", "database_url", "service", "stored"]
