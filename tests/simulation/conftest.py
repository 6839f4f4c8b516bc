import logging
import math
from collections.abc import Iterator

import pytest

from timer_service.core.ports import turns


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    """Disable the logs, because the faults of these tests log many warnings."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True, scope="module")
def no_pauses() -> Iterator[None]:
    """Let no task pause after a long turn: on a busy machine any turn may be long, and time is simulated here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "LONG_SECONDS", math.inf)
        yield
