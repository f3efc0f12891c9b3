"""How long to wait on a machine that others use as well."""

from __future__ import annotations

import os

_MOST_BUSY = 10.0
_BESIDE_TESTS_S = 25.0


def patience(seconds: float) -> float:
    """`seconds`, or as many times more as the machine's load exceeds its cores: then everything takes longer."""
    return seconds * min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), _MOST_BUSY)


def promised(seconds: float) -> float:
    """What docs/reliability.md promises, with `patience`: `make soak` holds to it.

    The few cases in `make test` have more: beside other tests, any process may stand still for a while.
    """
    return patience(seconds) + (_BESIDE_TESTS_S if "PYTEST_CURRENT_TEST" in os.environ else 0.0)
