"""How long to wait on a machine that others use as well."""

from __future__ import annotations

import os

_MOST_BUSY = 10.0


def patience(seconds: float) -> float:
    """`seconds`, or as many times more as the machine's load exceeds its cores: then everything takes longer."""
    return seconds * min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), _MOST_BUSY)
