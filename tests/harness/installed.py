"""Servers that a test needs and that may not be installed."""

import os

import pytest

from timer_service.adapters.embedded import Program
from timer_service.core.values.errors import StartError


def require(program: Program) -> None:
    """Skip the test if a server is not installed. Fail if CI is set: there, all of them must be."""
    try:
        program.find()
    except StartError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"not run: {error}")
