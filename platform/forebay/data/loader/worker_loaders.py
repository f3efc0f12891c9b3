"""Loaders of one worker.

They are closed even if its training loop raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.source import SourceProvider
from forebay.data.loader.batch import Batch
from forebay.data.loader.data import Data
from forebay.data.loader.loader import Loader
from forebay.runtime.metrics import Counters
from forebay.world import World


class WorkerLoaders:
    """Loaders of this rank's part of any `Data`.

    With batches on its device.

    A training loop that raises leaves its loader open in the frames of the traceback. `close` ends those too.
    """

    def __init__(self, world: World, device: torch.device, cache: DiskCache | SourceProvider | None) -> None:
        self._world, self._device, self._cache = world, device, cache
        self._open: set[Loader] = set()

    @contextmanager
    def loader(self, data: Data, counters: Counters, epochs: int = 1) -> Iterator[Loader]:
        """Loader of `epochs` epochs.

        At the start of the first. Closed at the end of the block.
        """
        with Loader(
            data, self._cache, world=self._world, epochs=epochs, counters=counters, device=self._device
        ) as loader:
            self._open.add(loader)
            yield loader
        self._open.discard(loader)

    def one_epoch(self, data: Data, counters: Counters) -> Iterator[Batch]:
        """Batches of one epoch."""
        with self.loader(data, counters) as loader:
            yield from loader

    def close(self) -> None:
        """End the threads of all open loaders."""
        while self._open:
            self._open.pop().close()
