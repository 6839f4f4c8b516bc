"""Check the configuration and the alerts of Prometheus, and run the tests of the alerts: `make check-deploy`.

It needs promtool, which comes with Prometheus. Without promtool it says so, and fails only if CI is set.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
CHECKS = (("check", "config", "prometheus.yml"), ("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml"))


def main() -> int:
    """Run all checks. Return the exit code."""
    promtool = shutil.which("promtool")
    if promtool is None:
        print("The alerts are NOT CHECKED: promtool is not installed. On Debian: apt-get install prometheus")
        return 1 if os.environ.get("CI") else 0
    return max(subprocess.run([promtool, *check], cwd=FOLDER, check=False).returncode for check in CHECKS)


if __name__ == "__main__":
    sys.exit(main())
