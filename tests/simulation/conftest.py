import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    """Disable the logs, because the faults of these tests log many warnings."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
