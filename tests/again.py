"""Runs the tests that failed in the last run of pytest once more, one after the other: `make test-again`.

Tests with real servers wait for a bounded time, and a busy machine can be slower than that. A test that fails here too
is at fault. So are more failures than a busy machine causes: they are not run again.
"""

import json
import subprocess
import sys
from pathlib import Path

_LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
_MOST = 5


def main() -> int:
    """Run the tests again. Return 0 only if there are a few, and all of them pass."""
    failed = sorted(json.loads(_LAST_FAILED.read_text())) if _LAST_FAILED.exists() else []
    if not failed:
        print("No failed test is recorded, so pytest itself must have failed.")
        return 1
    print(f"{len(failed)} tests failed beside others:", *failed, sep="\n  ")
    if len(failed) > _MOST:
        print(f"More than {_MOST} are not run again.")
        return 1
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "", *failed]
    code = subprocess.run(command, check=False).returncode
    print("They passed alone: look at what they wait for." if code == 0 else "They fail alone too.")
    return code


if __name__ == "__main__":
    sys.exit(main())
