"""Recorded worker: `DriverBench` reads its files.

Whatever function trains.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from forebay.data.loader.batch import Batch
from forebay.events import Request
from forebay.testing.drivers.bench import STEPS_PER_EPOCH, DriverBench
from forebay.testing.drivers.recorded_worker import LOSSES, checksums, recorded, recorded_losses
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.collectives.collective import SingleProcessCollective
from forebay.training.worker.worker import Worker


class Silent:
    """Reporter that listens to nothing and asks for nothing."""

    def report(self, *_events: Any) -> None: ...

    def request(self) -> Request:
        return Request()

    synced_request = request


def commit_positions(worker: Worker) -> None:
    for batch in worker.loader():
        worker.commit(loss=float(batch.position))


def test_rows_and_losses_of_every_step_are_recorded(tmp_path: Path) -> None:
    bench = DriverBench(tmp_path)
    job = bench.job("run", epochs=2)
    job = replace(job, data=replace(job.data, augment=None))
    worker = Worker(job.train_spec, SingleProcessCollective(), None, DirectoryStore(tmp_path / "saved"), Silent())
    log = tmp_path / "rows" / "run"
    recorded(commit_positions, str(log), 0.0, worker)
    worker.close()
    trained, losses = bench.trained("run"), recorded_losses(log)
    assert list(trained) == list(losses) == list(range(2 * STEPS_PER_EPOCH))
    assert [losses[step] for step in range(3)] == [0.0, 15.0, 30.0]
    first, second = ([row for step in epoch for row in trained[step]] for epoch in (range(8), range(8, 16)))
    assert len(set(first)) == len(first) == 120
    assert sorted(second) == sorted(first) and second != first
    assert bench.steps_redone("run") == 0


def test_loss_of_a_repeated_step_is_that_of_its_last_world(tmp_path: Path) -> None:
    lines = ["[0, 0, 2, 1.0]", "[0, 1, 2, 3.0]", "[1, 1, 2, 8.0]", "[1, 0, 1, 5.0]"]
    (tmp_path / LOSSES).write_text("\n".join(lines))
    assert recorded_losses(tmp_path) == pytest.approx({0: 2.0, 1: 5.0})


def test_checksums_are_those_of_a_row_and_its_lists() -> None:
    batch = Batch(
        {"id": torch.tensor([4, 5, 4]), "tags": torch.tensor([1, 2, 1, 2]), "tags_lengths": torch.tensor([2, 0, 2])},
        num_rows=3,
    )
    batch.lists = ("tags",)
    first, second, third = checksums(batch)
    assert first == third != second
    batch["tags"][3] = 9
    assert checksums(batch)[:2] == [first, second] and checksums(batch)[2] != third
