"""`timer-service` with a watch on its event loop: `python -m tests.harness.watched_service serve`.

The file that `TIMER_TEST_PAUSES` names gets a line for each time that the event loop was blocked for long: the
milliseconds of the block, without the time in which the kernel let other processes run instead of the loop's thread.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from timer_service.app.service import App
from timer_service.cli import main

PAUSES = "TIMER_TEST_PAUSES"
_SECONDS = 0.005
_LEAST_SECONDS = 0.05
_run = App.run


def kept_waiting() -> float:
    """Return the seconds for which this thread could have run, but others did."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


async def watch(file: Path) -> None:
    """Write the long blocks of the running event loop to a file."""
    with file.open("a", buffering=1) as out:
        while True:
            began, waited = time.monotonic(), kept_waiting()
            await asyncio.sleep(_SECONDS)
            wall = time.monotonic() - began - _SECONDS
            if wall > _LEAST_SECONDS and (blocked := wall - (kept_waiting() - waited)) > _LEAST_SECONDS:
                print(f"{blocked * 1000:.0f}", file=out)


async def run(self: App, *arguments: Any, **options: Any) -> None:
    """Run the service and the watch."""
    watching = asyncio.create_task(watch(Path(os.environ[PAUSES])))
    try:
        await _run(self, *arguments, **options)
    finally:
        watching.cancel()


if __name__ == "__main__":
    App.run = run  # type: ignore[method-assign]
    main()
