import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_logs() -> Iterator[None]:
    """A service that fares ill says so, and here it fares ill all the time."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
