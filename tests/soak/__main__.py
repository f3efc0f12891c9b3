"""`python -m tests.soak`: the fault matrix."""

from __future__ import annotations

import sys

from tests.soak.runner import main

if __name__ == "__main__":
    sys.exit(main())
