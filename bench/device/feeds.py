"""Ways of feeding a model from Parquet: Forebay, a torch `DataLoader` of processes, petastorm.

Each yields its phases: a name, batches on the device, the seconds to measure at most, and facts for its line.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from bench.device.clicks import DENSE, IDS

_SEED = 7
_QUOTA_BYTES = 64 << 30
_PETASTORM_THREADS = 10  # its default


@dataclass(frozen=True, kw_only=True)
class FeedSetting:
    """Data and sizes of a feed. `small_data` has the same columns, for what a process pays once."""

    data: Path
    small_data: Path
    work: Path
    batch: int
    seconds: float
    processes: int
    device: str
    buckets: int


@dataclass(frozen=True, kw_only=True)
class FedBatches:
    """Batches to be measured. `facts` is called afterwards."""

    name: str
    batches: Iterator[Mapping[str, torch.Tensor]]
    seconds: float
    start_s: float
    facts: Callable[[], Mapping[str, Any]] = dict


def forebay(setting: FeedSetting) -> Iterator[FedBatches]:
    """A cold epoch, then cached ones. Kernels are compiled and data workers started before, on small data."""
    import forebay as fb  # noqa: PLC0415 - imported only for this way
    from forebay.data.cache.source import LocalCache  # noqa: PLC0415

    def opened(data: Path, name: str) -> fb.Loader:
        transform = fb.Transform(
            dense=fb.Dense(DENSE), ids=fb.Categorical(IDS, buckets=setting.buckets), label=fb.Label("label")
        )
        rows = fb.Data(
            plan=fb.build_plan(fb.scan(str(data)), seed=_SEED),
            transform=transform,
            global_batch=setting.batch,
            last="drop" if data == setting.data else "balance",
        )
        spec = fb.CacheSpec(path=str(setting.work / name), quota_bytes=_QUOTA_BYTES, min_free_bytes=0)
        on_gpu = setting.device if setting.device != "cpu" else None
        return fb.Loader(rows, LocalCache(spec), epochs=1 << 30, device=on_gpu)

    began = time.perf_counter()
    with opened(setting.small_data, f"small-{setting.batch}") as loader:
        for _ in range(2):
            list(loader)
    start_s = time.perf_counter() - began
    with opened(setting.data, f"cache-{setting.batch}") as loader:

        def counters() -> dict[str, float]:
            return {name: round(value, 3) for name, value in loader.counters.as_dict().items() if value}

        yield FedBatches(
            name="cold", batches=iter(loader), seconds=60, start_s=start_s, facts=lambda: {"counters": counters()}
        )
        with closing(_endless(loader)) as batches:
            yield FedBatches(name="cached", batches=batches, seconds=setting.seconds, start_s=0.0)


def torch_processes(setting: FeedSetting) -> Iterator[FedBatches]:
    """PyTorch's `DataLoader` over row groups, as a careful user writes it."""
    loader = DataLoader(
        ClickRows(setting.data, setting.batch, buckets=setting.buckets),
        batch_size=None,
        num_workers=setting.processes,
        prefetch_factor=4,
        persistent_workers=True,
        pin_memory=setting.device != "cpu",
    )
    batches = (
        {name: value.to(setting.device, non_blocking=True) for name, value in each.items()} for each in _endless(loader)
    )
    yield _begun(batches, setting)


def petastorm(setting: FeedSetting) -> Iterator[FedBatches]:
    """Petastorm's `make_batch_reader` with threads into its `BatchedDataLoader`."""
    warnings.filterwarnings("ignore")
    from petastorm import make_batch_reader  # noqa: PLC0415 - installed in few places
    from petastorm.pytorch import BatchedDataLoader  # noqa: PLC0415

    reader = make_batch_reader(
        [f"file://{path.resolve()}" for path in sorted(setting.data.glob("*.parquet"))],
        reader_pool_type="thread",
        workers_count=_PETASTORM_THREADS,
        shuffle_row_groups=True,
        shuffle_rows=True,
        seed=_SEED,
        num_epochs=None,
        convert_early_to_numpy=True,
    )

    def packed(batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        dense, ids = (torch.stack([torch.as_tensor(batch[name]) for name in names], dim=1) for names in (DENSE, IDS))
        arrays = {"dense": dense, "ids": ids % setting.buckets, "label": torch.as_tensor(batch["label"])}
        return {name: value.to(setting.device) for name, value in arrays.items()}

    yield _begun((packed(batch) for batch in BatchedDataLoader(reader, batch_size=setting.batch)), setting)
    reader.stop()


class ClickRows(IterableDataset[dict[str, torch.Tensor]]):
    """Row groups in random order, rows shuffled within each. The rest of one starts the next batch."""

    def __init__(self, data: Path, batch: int, *, buckets: int | None) -> None:
        """Without `buckets`, rows have no ids."""
        self._batch, self._buckets = batch, buckets
        self._tasks = [
            (path, group)
            for path in sorted(data.glob("*.parquet"))
            for group in range(pq.read_metadata(path).num_row_groups)
        ]

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker = get_worker_info()
        rng, left = np.random.default_rng(_SEED), dict[str, np.ndarray]()
        for task in rng.permutation(len(self._tasks))[worker.id :: worker.num_workers]:
            arrays = self._arrays(*self._tasks[task], rng)
            if left:
                arrays = {name: np.concatenate([left[name], value]) for name, value in arrays.items()}
            whole = len(arrays["label"]) // self._batch * self._batch
            for start in range(0, whole, self._batch):
                yield {name: torch.from_numpy(each[start : start + self._batch]) for name, each in arrays.items()}
            left = {name: value[whole:] for name, value in arrays.items()}

    def _arrays(self, path: Path, group: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        names = [*DENSE, *(IDS if self._buckets else []), "label"]
        table = pq.ParquetFile(path).read_row_group(group, columns=names, use_threads=False)
        order = rng.permutation(len(table))
        found = {"dense": np.stack([table[name].to_numpy() for name in DENSE], axis=1)[order]}
        if self._buckets:
            found["ids"] = np.stack([table[name].to_numpy() for name in IDS], axis=1)[order] % self._buckets
        return found | {"label": table["label"].to_numpy()[order]}


FEEDS: dict[str, Callable[[FeedSetting], Iterator[FedBatches]]] = {
    "forebay": forebay,
    "torch DataLoader": torch_processes,
    "petastorm": petastorm,
}


def _begun(batches: Iterator[Mapping[str, torch.Tensor]], setting: FeedSetting) -> FedBatches:
    """Every epoch alike, after the first batches: what a process pays once counts for none."""
    began = time.perf_counter()
    for _ in range(2):
        next(batches)
    return FedBatches(name="every epoch", batches=batches, seconds=setting.seconds, start_s=time.perf_counter() - began)


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader
