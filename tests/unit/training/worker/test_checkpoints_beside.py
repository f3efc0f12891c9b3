"""The worker with checkpoints that are written beside its steps."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.training.worker.test_worker import Killed, WorkerRun

from forebay.data.loader.data import Data
from forebay.errors import WriteFailed
from forebay.training.checkpoint import background_writer, local_store
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.local_store import DirectStore
from forebay.training.collectives.collective import SingleProcessCollective
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker

SLOW_S = 0.02


class RunBeside(WorkerRun):
    def train(self, *, die_at: int | None = None) -> Worker:
        with closing(DirectStore(CheckpointConfig(uri=str(self.folder)))) as store:
            worker = Worker(self.train_spec, SingleProcessCollective(), None, store, self.recorder)
            with suppress(Killed):
                worker.run(partial(self._train, die_at=die_at))
            return worker


@pytest.fixture
def make_beside(
    make_data: Callable[..., Data], tmp_path: Path, make_recorder: type, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], RunBeside]:
    for module in (background_writer, local_store):
        monkeypatch.setattr(module, "LEAST_BYTES", 0)
    write = CheckpointFiles._write

    def slow(self: CheckpointFiles, path: str, contents: Any) -> None:
        time.sleep(SLOW_S)
        write(self, path, contents)

    monkeypatch.setattr(CheckpointFiles, "_write", slow)
    spec = TrainSpec(data=make_data(), epochs=3, seed=5, checkpoint_every=2)
    return lambda name: RunBeside(spec, tmp_path / name, make_recorder())


@pytest.mark.parametrize("die_at", [1, 4, 9])
def test_a_resumed_run_equals_an_undisturbed_one(make_beside: Callable[[str], RunBeside], die_at: int) -> None:
    """Parameters change in place while the checkpoint before is still written."""
    calm, killed = make_beside("calm"), make_beside("killed")
    calm.train()
    killed.train(die_at=die_at)
    killed.train()
    assert killed.seen == calm.seen
    assert all(map(torch.equal, killed.parameters(), calm.parameters()))


def test_a_full_disk_ends_the_run_at_a_later_commit(
    make_beside: Callable[[str], RunBeside], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, write = make_beside("full"), CheckpointFiles._write

    def refuse(self: CheckpointFiles, path: str, contents: Any) -> None:
        if "step-000000004" in path:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, path, contents)

    monkeypatch.setattr(CheckpointFiles, "_write", refuse)
    with pytest.raises(WriteFailed, match="checkpoint of step 4 could not be written"):
        run.train()
    assert CheckpointFiles(CheckpointConfig(uri=str(run.folder))).complete_steps()[0] == 2
