"""Cases that share a test, because a test for each of them would take longer than the cases."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(*values: object) -> Iterator[None]:
    """Name the case in an error of the block."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {', '.join(map(repr, values))}")
        raise
