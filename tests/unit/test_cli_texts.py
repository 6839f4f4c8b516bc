"""Texts that the command line reads and prints: durations, and the command that starts it."""

import sys
from datetime import timedelta

import pytest

from timer_service.cli.dev import own_command
from timer_service.cli.parameters import read_duration


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("1w", timedelta(weeks=1)),
        ("1w1d", timedelta(days=8)),
        ("1h30m", timedelta(minutes=90)),
        ("P1W", timedelta(weeks=1)),
        ("PT1H30M", timedelta(minutes=90)),
        ("1.5h", timedelta(minutes=90)),
    ],
)
def test_durations(text: str, duration: timedelta) -> None:
    """A duration has the units from milliseconds to weeks, or is ISO 8601."""
    assert read_duration(text) == duration


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("/usr/bin/timer-service", "/usr/bin/timer-service"),
        ("/my folder/timer-service", "'/my folder/timer-service'"),
        ("/site/timer_service/__main__.py", f"{sys.executable} -m timer_service"),
    ],
)
def test_own_command(program: str, command: str) -> None:
    """The command that `dev` shows can be run in a shell, also after `python -m timer_service`."""
    assert own_command(program) == command
