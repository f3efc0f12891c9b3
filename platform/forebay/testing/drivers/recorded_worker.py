"""Worker that records the rows and loss of every step.

For any train function, in the form of `DriverBench`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
import xxhash

from forebay.data.loader.batch import Batch
from forebay.testing.drivers.events import Disturbance, StepRecord
from forebay.training.state.metric import Metric, WeightedMean
from forebay.training.worker.worker import Worker

LOSSES = "losses"


def recorded(train: Callable[[Worker], None], log: str, step_s: float, worker: Worker) -> None:
    """Call `train` with a worker that records into `log`.

    Each step takes at least `step_s` seconds.
    """
    train(cast(Worker, _RecordedWorker(worker, Path(log), step_s)))


def recorded_losses(log: Path) -> dict[int, float]:
    """Loss of each step, the mean over its ranks.

    A repeated step counts as its last attempt.
    """
    found: dict[int, tuple[float, ...]] = {}
    for line in (log / LOSSES).read_text().splitlines():
        step, rank, size, loss = json.loads(line)
        before = found.get(step, ())
        kept = before if len(before) == size else (0.0,) * size
        found[step] = (*kept[:rank], loss, *kept[rank + 1 :])
    return {step: sum(values) / len(values) for step, values in sorted(found.items())}


class _RecordedWorker:
    """Worker in all but `loader` and `commit`.

    A row is known by a checksum of its arrays.

    An augment gives a row another checksum in each epoch.
    """

    def __init__(self, worker: Worker, log: Path, step_s: float) -> None:
        self._worker, self._losses = worker, log / LOSSES
        self._steps = StepRecord(worker, str(log), Disturbance(), step_s)
        self._rows: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def loader(self) -> Iterator[Batch]:
        for batch in self._worker.loader():
            self._rows = checksums(batch) if batch.weight else []
            yield batch

    def commit(self, **metrics: Metric) -> None:
        self._steps.write(self._rows)
        loss = metrics["loss"]
        assert not isinstance(loss, WeightedMean), "a loss is one number"
        step, world = self._worker.step, self._worker.world
        with self._losses.open("ab", buffering=0) as file:  # One write per line: ranks share the file.
            file.write(json.dumps([step, world.rank, world.size, float(loss)]).encode() + b"\n")
        self._worker.commit(**metrics)


def checksums(batch: Batch) -> list[int]:
    """XXH3 of the values of each row.

    Of lists without padding, the row's values.
    """
    arrays = [
        torch.split(batch[name], batch[f"{name}_lengths"].tolist()) if name in batch.lists else batch[name]
        for name in sorted(batch)
    ]
    return [
        xxhash.xxh3_64_intdigest(b"".join(each[row].numpy().tobytes() for each in arrays))
        for row in range(batch.num_rows)
    ]
