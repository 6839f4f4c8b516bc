"""Small limits of the intake, so that many commands of a short history wait, and a time that a test moves."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from timer_service.core.intake import crash_care, reader, waiting, waiting_rows
from timer_service.core.ports import turns


@contextmanager
def small_intake(monotonic: Callable[[], float], *, most_bytes: int = waiting.MOST_BYTES) -> Iterator[None]:
    """Let a tenant have at most half of a batch if more than two commands are behind it, and a row two commands.

    `monotonic` returns the seconds that the reader measures. `most_bytes`: when the waiting commands are too many.
    """
    time = SimpleNamespace(monotonic=monotonic)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "time", time)
        for module in (reader, waiting):
            patch.setattr(module, "FAR_BEHIND", 2)
        patch.setattr(waiting, "LARGE_PART", 2)
        patch.setattr(waiting_rows, "ROW_COMMANDS", 2)
        patch.setattr(reader, "MOST_BYTES", most_bytes)
        patch.setattr(crash_care, "GROUP_COMMANDS", 2)
        patch.setattr(crash_care, "FEW_COMMANDS", 1)
        patch.setattr(turns, "TRANSACTION_SECONDS", math.inf)  # a history does not depend on how fast the machine is
        yield
