"""What the system refuses ends in `CacheUnusable`, which names the directory and says what to do."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from forebay.cache.disk import DiskCache
from forebay.errors import CacheUnusable
from forebay.observe import Tally
from forebay.transform.block import Block


@contextmanager
def no_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_a_lock_says_so(cache: DiskCache, key_of: Callable[[object], str]) -> None:
    with no_descriptors(), pytest.raises(CacheUnusable, match="Too many open files.*ulimit -n") as raised:  # noqa: SIM117
        with cache.single_flight(key_of(1), 1.0):
            pass
    assert str(cache.path) in str(raised.value)


def test_a_lock_in_a_directory_that_is_gone(cache: DiskCache, key_of: Callable[[object], str]) -> None:
    shutil.rmtree(cache.path)
    with pytest.raises(CacheUnusable, match="Name another directory"), cache.single_flight(key_of(1), 1.0):
        pass


def test_a_damaged_block_that_cannot_be_set_aside(
    cache: DiskCache, block_of: Callable[..., Block], key_of: Callable[[object], str]
) -> None:
    key = key_of(1)
    cache.put(key, "data", block_of())
    path = cache.path_of(key)
    path.write_bytes(path.read_bytes()[:-1])
    shutil.rmtree(cache.path / "quarantine")
    with pytest.raises(CacheUnusable, match="Name another directory"):
        cache.get(key, Tally())
