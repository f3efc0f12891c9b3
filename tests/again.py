"""Run the few tests that failed in a whole run once more, alone.

`python -m tests.again`, after pytest has exited with 1. A law of processes may break on a machine that stands still for
seconds. It does not count then, but it is named: the test or the code waits too short, and one of them must be mended.
Neither does the crash of a process that has run its tests, in the end of the interpreter and of native libraries.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.processes import AFTER_ALL

MOST = 5
"""Tests that are run again. More failures are no accident."""
FAILED_TWICE, PASSED = "failed twice", "UNSTABLE, failed and then passed alone"
CRASHED = "UNSTABLE, crashed"
FAILED = Path(".pytest_cache/v/cache/lastfailed")


def failed_tests() -> list[str]:
    """Ids of the tests that failed when they were last run."""
    return sorted(json.loads(FAILED.read_text())) if FAILED.exists() else []


def main() -> int:
    """Return 0 if all that failed pass now."""
    failed = failed_tests()
    if not 0 < len(failed) <= MOST:
        return 1
    tests = [name for name in failed if not name.startswith(AFTER_ALL)]
    status = 0
    if tests:
        print(f"== pytest, {len(tests)} that failed, once more and alone", flush=True)
        status = subprocess.run([sys.executable, "-m", "pytest", *tests], check=False).returncode
    again = failed_tests()
    for name in failed:
        print(f"   {CRASHED if name not in tests else FAILED_TWICE if name in again else PASSED}: {name}")
    return status


if __name__ == "__main__":
    sys.exit(main())
