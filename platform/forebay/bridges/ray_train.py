"""Loader as the dataset of Ray Train.

Checked with Ray 2.60.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import ray.train

from forebay.bridges.equal_parts import validate_equal_parts
from forebay.bridges.torch import LoaderDataset
from forebay.data.cache.node.client import attach
from forebay.data.cache.spec import CacheSpec
from forebay.data.loader.batch import Batch
from forebay.data.loader.data import Data
from forebay.data.loader.loader import Loader
from forebay.data.plan.plan import build_plan
from forebay.data.transform.dataset import Dataset
from forebay.errors import InvalidOption, whole_number
from forebay.world import World


class LoaderShard(LoaderDataset):
    """The loader of one Ray Train worker.

    `ray.train.get_dataset_shard` returns it, over the cache of its node.

    One iteration yields the rest of the current epoch. `state_dict` belongs into the checkpoint: it is the same on all
    workers, and another number of workers can continue from it. The loader opens at the first use, in the worker.
    """

    def __init__(self, data: Data, world: World, cache: CacheSpec | None) -> None:
        self.data, self.world, self._cache = data, world, cache

    @cached_property
    def loader(self) -> Loader:  # type: ignore[override]
        """Loader of this worker."""
        return Loader(self.data, None if self._cache is None else attach(self._cache), world=self.world)

    def iter_torch_batches(self, *, batch_size: int | None = None) -> Iterator[Batch]:
        """Yield batches of tensors, as a Ray Data shard.

        Raises `InvalidOption` for another size than the config's.

        `batch_size` counts rows of this worker: `global_batch` divided by the number of workers.
        """
        if batch_size not in (None, own := self.data.global_batch // self.world.size):
            raise InvalidOption(
                f"batch_size={batch_size}, but DataConfig(global_batch={self.data.global_batch}) gives each of "
                f"{self.world.size} workers {own} rows. Leave batch_size out, or change global_batch.",
                batch_size=batch_size,
            )
        return iter(self)


class DataConfig(ray.train.DataConfig):  # type: ignore[misc]
    """Configuration with which `TorchTrainer(datasets={"train": fb.Dataset(...)}, dataset_config=...)` uses Forebay.

    ```python
    config = fb.bridges.ray_train.DataConfig(global_batch=8192, seed=7, cache=fb.CacheSpec(path="/ssd/forebay"))
    TorchTrainer(train, datasets={"train": fb.Dataset(manifest, transform)}, dataset_config=config)
    ```

    `global_batch` are the rows of a step over all workers, of any number. `seed` and `lanes` are those of
    `fb.build_plan`. `cache=None` reads the source in every epoch.

    Raises `InvalidOption` in the run, before its first batch, if workers would get parts of different sizes.
    """

    def __init__(
        self, *, global_batch: int, seed: int = 0, lanes: int | None = None, cache: CacheSpec | None = None
    ) -> None:
        super().__init__()
        self._global_batch = whole_number("global_batch", global_batch, least=1)
        self._seed, self._lanes, self._cache = seed, lanes, cache

    def configure(self, datasets: Mapping[str, Any], world_size: int, *_: Any, **__: Any) -> list[dict[str, Any]]:
        """Return the shards of each worker by name.

        Ray Train calls this for every new group of workers.
        """
        data = {name: self._data(name, dataset, world_size) for name, dataset in datasets.items()}
        worlds = [World(rank=rank, size=world_size) for rank in range(world_size)]
        return [{name: LoaderShard(each, world, self._cache) for name, each in data.items()} for world in worlds]

    def _data(self, name: str, dataset: Any, world_size: int) -> Data:
        if not isinstance(dataset, Dataset):
            raise InvalidOption(f"datasets[{name!r}]={dataset!r:.200}: give fb.Dataset(manifest, transform).")
        plan = build_plan(dataset.manifest, seed=self._seed, lanes=self._lanes)
        validate_equal_parts(plan, global_batch=self._global_batch, last="drop", world_size=world_size)
        rows, augment = self._global_batch, dataset.augment
        return Data(plan=plan, transform=dataset.transform, global_batch=rows, last="drop", augment=augment)
