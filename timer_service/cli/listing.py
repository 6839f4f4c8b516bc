"""What the commands that list things have in common."""

import shutil
import sys
from collections.abc import AsyncIterator
from typing import TypeVar

_T = TypeVar("_T")


async def first(found: AsyncIterator[_T], count: int) -> list[_T]:
    """Return so many of what there is, fewer if there are no more."""
    taken: list[_T] = []
    async for each in found:
        taken.append(each)
        if len(taken) == count:
            break
    return taken


def terminal_width() -> int | None:
    """Return how wide a line may be, None where no terminal is written to."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
