"""Short jobs that can be disturbed at a step.

They train in a second. Their model counts the rows that shaped it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from forebay.data.cache.spec import CacheSpec
from forebay.data.loader.data import Data
from forebay.data.manifest.manifest import Manifest
from forebay.data.plan.mixture.mixture import Mixture
from forebay.data.plan.order import Order
from forebay.data.plan.plan import build_plan
from forebay.data.sources.scan import scan
from forebay.data.transform.features.groups import Dense, Label
from forebay.data.transform.row_random import RowRandom
from forebay.data.transform.transform import Transform
from forebay.storage.filesystem import below
from forebay.testing.drivers.counting_model import CountingModel, build_optimizer, train_step
from forebay.testing.drivers.events import ATTEMPTS, Disturbance, StepAttempt, happened_at, recording_train
from forebay.training.checkpoint.checkpoint import Checkpoint, DirectoryStore
from forebay.training.driver.local.driver import LocalDriver
from forebay.training.job.job import Job
from forebay.training.job.resources import Resources
from forebay.training.runs.result import Result
from forebay.training.state.snapshot import Snapshot
from forebay.training.worker.worker import Worker

ROWS = 120
STEPS_PER_EPOCH = 8
STAGES = ((0, {"first": 1.0}), (72, {"first": 1.0, "second": 1.0}), (150, {"first": 1.0, "second": 3.0}))
"""Weights of the mixture by row of the run. They change within step 4, and before step 10."""

BenchOrder = Literal["rows", "mixture"]


class DriverBench:
    """Short jobs for tests, and what their runs leave behind.

    An epoch has 120 rows. All files are below `folder`. A second bench in the same folder, even in another process,
    makes the same jobs. Rows come from one dataset, or from a mixture of two whose weights change during the run. An
    augment adds noise to each of them.
    """

    def __init__(self, folder: Path, order: BenchOrder = "rows") -> None:
        self._folder, self.order = folder, order
        self._data = Data(
            plan=_plan(scan(_write_rows(folder / "data")), order),
            transform=Transform(row=Dense("id"), inputs=Dense(["a", "b", "c"]), label=Label("target")),
            global_batch=16,
            augment=add_noise,
        )

    @property
    def folder(self) -> Path:
        return self._folder

    def job(
        self,
        name: str,
        *,
        at_step: int = -1,
        event: str = "",
        step_s: float = 0.0,
        **options: Any,
    ) -> Job:
        """Make a job of two epochs.

        It has a checkpoint every 3 steps. Each step takes at least `step_s` seconds.

        After step `at_step` this happens to the last rank: `raise` (a `ValueError`),
        `hang`, `hold` (with the interpreter's lock), `suspend` (SIGSTOP), `kill` (SIGKILL, once) or `kill always`.
        """
        # The laws are checked on CPUs, whatever the machine has.
        options.setdefault("resources", Resources(gpus=0))
        log = self._folder / "rows" / name
        log.mkdir(parents=True, exist_ok=True)
        disturbance = Disturbance(at_step=at_step, event=event)
        train = partial(recording_train, num_rows=ROWS, log=str(log), disturbance=disturbance, step_s=step_s)
        defaults: dict[str, Any] = {
            "train": train,
            "data": self._data,
            "epochs": 2,
            "cache": CacheSpec(path=str(self._folder / "cache"), quota_bytes=1 << 24, min_free_bytes=0),
            "storage": str(self._folder / "runs"),
            "checkpoint_every": 3,
        }
        return Job(name=name, **(defaults | options))

    def rows(self, name: str) -> dict[str, list[int]]:
        """Ids of the trained rows, by `step-rank`.

        A repeated step counts once.
        """
        return {path.name: json.loads(path.read_text()) for path in sorted((self._folder / "rows" / name).glob("0*"))}

    def trained(self, name: str) -> dict[int, list[int]]:
        """Sorted ids of each step's rows, over all ranks.

        A repeated step counts as its last attempt.
        """
        sizes = {each.step: each.size for each in self.attempts(name)}
        rows = self.rows(name)
        return {
            step: sorted(row for rank in range(size) for row in rows[f"{step:05}-{rank}"])
            for step, size in sorted(sizes.items())
        }

    def planned(self, epochs: int, plan: Order | None = None) -> dict[int, list[int]]:
        """Sorted ids of each step's rows in a plan.

        By default the jobs' plan.
        """
        plan, steps = plan or self._data.plan, dict[int, list[int]]()
        for epoch in range(epochs):
            position = 0
            while size := plan.batch_size(position, self._data.global_batch):
                steps[len(steps)] = sorted(_ids(plan, epoch, position, position + size).tolist())
                position += size
        return steps

    def attempts(self, name: str) -> list[StepAttempt]:
        """Every step that a rank made or tried, in order."""
        path = self._folder / "rows" / name / ATTEMPTS
        return [StepAttempt.from_line(line) for line in path.read_text().splitlines()] if path.exists() else []

    def members(self, name: str) -> dict[int, StepAttempt]:
        """Last attempt of each rank that trains now."""
        attempts = self.attempts(name)
        return {each.rank: each for each in attempts if each.size == attempts[-1].size}

    def steps_redone(self, name: str) -> int:
        """Number of steps that rank 0 has repeated."""
        tries = Counter(each.step for each in self.attempts(name) if each.rank == 0)
        return sum(tries.values()) - len(tries)

    def happened_at(self, name: str) -> float:
        """Unix time in seconds of the job's disturbance."""
        return happened_at(self._folder / "rows" / name)

    def assert_every_row_once(self, result: Result) -> None:
        """Assert that each row of the plan was trained once.

        Rows of whole epochs, and the first ones of the next epoch, shaped the model of the newest checkpoint once.
        The counts come from the model itself: see `CountingModel`. Every loss must be finite, too.
        """
        commit = newest_commit(result)
        counts = weights(result)["counts"].round().int().numpy()
        plan, cursor, wanted = self._data.plan, commit.cursor, np.zeros_like(counts)
        for epoch in range(cursor.epoch + (cursor.position > 0)):
            stop = plan.num_rows if epoch < cursor.epoch else cursor.position
            wanted[epoch] = np.bincount(_ids(plan, epoch, 0, stop), minlength=counts.shape[1])
        wrong = [
            f"row {row} of epoch {epoch} {counts[epoch, row]} times" for epoch, row in np.argwhere(counts != wanted)
        ]
        assert not wrong, f"{result.name}, {len(wrong)} rows of the model at step {commit.step}: {wrong[:8]}"
        told = [step.metrics for step in result.steps] + [epoch.metrics for epoch in result.epochs]
        numbers = [number for metrics in told for number in metrics.values()]
        assert all(math.isfinite(number) for number in numbers), f"{result.name}: a loss is not finite"

    def assert_like_undisturbed(self, result: Result, tolerance: float | None = None) -> None:
        """Assert that the model equals an undisturbed run's.

        The model of the newest checkpoint, up to the order of sums. Numbers may differ by 1e-4 and a thousandth, or by
        `tolerance` and that share.
        """
        rtol, atol = (1e-3, 1e-4) if tolerance is None else (tolerance, tolerance)
        commit, ours = newest_commit(result), weights(result)
        undisturbed = self._undisturbed(commit.step)
        assert undisturbed, f"{result.name}: an undisturbed run never came to step {commit.step}"
        for name, wanted in undisturbed.items():
            torch.testing.assert_close(ours[name], wanted, rtol=rtol, atol=atol)

    def _undisturbed(self, step: int) -> Mapping[str, torch.Tensor]:
        """Model after `step` steps by one worker in this process."""
        found: dict[str, torch.Tensor] = {}

        def train(worker: Worker) -> None:
            model, optimizer = worker.setup(CountingModel(ROWS), build_optimizer)
            for batch in worker.loader():
                worker.commit(loss=train_step(model, optimizer, batch, worker.world.size))
                if worker.step == step:
                    found.update({name: value.clone() for name, value in model.state_dict().items()})

        needed = -(-step // STEPS_PER_EPOCH)
        alone = replace(self.job("undisturbed"), train=train, epochs=needed, checkpoint_every=1 << 30, name=None)
        LocalDriver().run(alone)
        return found


def add_noise(batch: dict[str, Any], rng: RowRandom) -> dict[str, Any]:
    """Augment of the jobs.

    A row that got other noise at another world or after a kill would change the model.
    """
    batch["inputs"] += rng.normal(0.0, 0.5, 3)
    return batch


def _plan(manifest: Manifest, order: BenchOrder) -> Order:
    if order == "rows":
        return build_plan(manifest, seed=3, lanes=4)
    parts = {"first": manifest.take([0, 1, 2]), "second": manifest.take([3, 4])}
    plans = {name: build_plan(part, seed=3, lanes=4) for name, part in parts.items()}
    return Mixture(plans, STAGES, rows=ROWS)


def _ids(plan: Order, epoch: int, start: int, stop: int) -> np.ndarray:
    """Ids of rows at positions `start` to `stop`.

    They count rows in the order of blocks.
    """
    first = np.cumsum(plan.block_rows) - plan.block_rows
    found = plan.positioned_rows(epoch, start, stop, range(plan.lanes))
    ids: np.ndarray = first[found.block] + found.row
    return ids


def newest_commit(result: Result) -> Checkpoint:
    """Newest checkpoint of a run in storage."""
    commit = DirectoryStore(below(result.path, "checkpoints")).newest()
    assert commit is not None, f"{result.path} has no checkpoint"
    return commit


def weights(result: Result) -> Mapping[str, torch.Tensor]:
    """Model in the newest checkpoint of a run: name -> tensor."""
    model: Mapping[str, torch.Tensor] = Snapshot.from_checkpoint(newest_commit(result)).objects["model"]
    return model


def _write_rows(folder: Path) -> str:
    path = folder / "rows.parquet"
    if not path.exists():
        folder.mkdir(parents=True)
        rng = np.random.default_rng(0)
        columns = {name: rng.standard_normal(ROWS, dtype=np.float32) for name in ("a", "b", "c", "target")}
        pq.write_table(pa.table({"id": np.arange(ROWS), **columns}), path, row_group_size=28)
    return str(folder)
