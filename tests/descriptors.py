"""Limits of the descriptors of a test's process."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_descriptors(*, but: int = 0) -> Iterator[None]:
    """Let this process open no more files than `but`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.open("/dev/null", os.O_RDONLY) for _ in range(but + 1)]
    for fd in free:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
