"""Forks between runs of the local driver."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR

from forebay.data.loader.data import Data
from forebay.data.plan.plan import build_plan
from forebay.data.sources.scan import scan
from forebay.data.transform.features.groups import Dense, Label
from forebay.data.transform.transform import Transform
from forebay.errors import BadJob, CorruptFile, CursorMismatch, InvalidOption, WriteFailed
from forebay.events import EpochEnded
from forebay.storage.filesystem import resolve
from forebay.sweep.trial.fork import Origin, fork, newest_stored_step, origin_of, pin
from forebay.testing.drivers.bench import STEPS_PER_EPOCH, DriverBench
from forebay.testing.drivers.sharded_suite import needs_deepspeed
from forebay.training.batch_size.lr_scaling import LinearScaling
from forebay.training.batch_size.schedule import BatchSchedule
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import EncodedCheckpoint
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.driver.driver import run
from forebay.training.job.job import Job
from forebay.training.runs.attempts.start import create_attempt
from forebay.training.runs.result import load_result
from forebay.training.worker.worker import Worker

STEPS = 4
"""Steps per epoch of 32 rows."""
Make = Callable[..., Job]


def train(worker: Worker, lr: float, weight_decay: float, gamma: float, width: int, seen: dict[str, Any]) -> None:
    layers = nn.Sequential(nn.Linear(3, width), nn.Dropout(0.3), nn.Linear(width, 1))
    model, optimizer = worker.setup(layers, partial(torch.optim.Adam, lr=lr, weight_decay=weight_decay))
    scheduler = ExponentialLR(optimizer, gamma)
    worker.track(scheduler=scheduler)
    seen.setdefault("start", {name: value.clone() for name, value in model.state_dict().items()})
    for batch in worker.loader():
        seen.setdefault("groups", [dict(group) for group in optimizer.param_groups])
        seen.setdefault("steps", []).append(worker.step)
        loss = (model(batch["x"])[:, 0] - batch["label"]).square().mean() * batch.weight
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if batch.ends_epoch:
            scheduler.step()
        worker.commit(loss=loss)
    seen["end"] = {name: value.clone() for name, value in model.state_dict().items()}


@pytest.fixture
def make(parquet_folder: Callable[..., Path], tmp_path: Path) -> Make:
    root = parquet_folder({"a.parquet": [20], "b.parquet": [12]})
    transform = Transform(x=Dense(["x1", "x2", "x3"]), label=Label("clicked", dtype="float32"))

    def job(
        name: str, *, lr: float = 0.01, weight_decay: float = 0.0, gamma: float = 1.0, width: int = 4, **options: Any
    ) -> Job:
        seen = options.pop("seen", {})
        plan = build_plan(scan(root), seed=options.pop("plan_seed", 3), lanes=4)
        works = partial(train, lr=lr, weight_decay=weight_decay, gamma=gamma, width=width, seen=seen)
        options = {"epochs": 2, "checkpoint_every": 3, "storage": str(tmp_path / "runs"), "cache": None} | options
        return Job(train=works, data=Data(plan=plan, transform=transform, global_batch=8), name=name, **options)

    return job


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def newest_of(run_path: Path) -> Any:
    commit = DirectoryStore(run_path / "checkpoints").newest()
    assert commit is not None
    return commit


def test_a_branch_without_a_change_is_the_donor_gone_on(make: Make, runs: Path) -> None:
    whole: dict[str, Any] = {}
    run(make("whole", epochs=4, gamma=0.7, seen=whole), "local")
    run(make("donor", gamma=0.7), "local")
    assert fork(str(runs / "donor"), 2 * STEPS, str(runs / "fork")) == 2 * STEPS
    gone_on: dict[str, Any] = {}
    heard: list[Any] = []
    result = run(make("fork", epochs=4, gamma=0.7, seen=gone_on), "local", [lambda event, _: heard.append(event)])
    for name, value in whole["end"].items():
        assert torch.equal(gone_on["end"][name], value), "to the bit: moments, dropout and the order of rows go on"
    assert gone_on["steps"] == list(range(2 * STEPS, 4 * STEPS))
    assert [event.epoch for event in heard if isinstance(event, EpochEnded)] == [2, 3], "the donor's are no news"
    assert [(epoch.epoch, epoch.step) for epoch in result.epochs] == [(each, STEPS * (each + 1)) for each in range(4)]
    donor, kept = load_result(str(runs / "donor")), load_result(str(runs / "fork"))
    assert donor is not None and kept is not None
    assert [epoch.metrics for epoch in kept.epochs[:2]] == [epoch.metrics for epoch in donor.epochs]
    assert (kept.name, kept.path, kept.num_epochs) == ("fork", str(runs / "fork"), 4)


@pytest.mark.variation
@pytest.mark.parametrize("strategy", ["fsdp2", pytest.param("zero3", marks=[needs_deepspeed])])
def test_branch_of_a_sharded_run_goes_on_with_any_workers(tmp_path: Path, strategy: str) -> None:
    bench, options = DriverBench(tmp_path), {"strategy": strategy, "workers": 2}
    run(bench.job("donor", epochs=1, **options), "local")
    donor = str(tmp_path / "runs" / "donor")
    assert pin(donor) == STEPS_PER_EPOCH
    for name, other in (("same", options), ("other", {"workers": 1})):
        assert fork(donor, STEPS_PER_EPOCH, str(tmp_path / "runs" / name)) == STEPS_PER_EPOCH
        result = run(bench.job(name, **other), "local")
        assert result.is_finished
        bench.assert_every_row_once(result)
        bench.assert_like_undisturbed(result, tolerance=1e-5)


def test_a_branch_trains_under_its_own_configuration(make: Make, runs: Path) -> None:
    run(make("donor", lr=0.01, gamma=0.5), "local")
    step = fork(str(runs / "donor"), 2 * STEPS, str(runs / "fork"))
    seen: dict[str, Any] = {}
    run(make("fork", lr=0.3, weight_decay=0.02, gamma=0.5, epochs=3, seen=seen), "local")
    donor = newest_of(runs / "donor")
    for name, value in donor.shards[0]["objects"]["model"].items():
        assert torch.equal(seen["start"][name], value)
    (group,) = seen["groups"]
    assert (group["initial_lr"], group["lr"], group["weight_decay"]) == (0.3, pytest.approx(0.3 * 0.5**2), 0.02)
    trained = newest_of(runs / "fork")
    assert trained.shards[0]["objects"]["optimizer"]["state"][0]["step"] == trained.step == step + STEPS
    assert trained.shards[0]["objects"]["optimizer"]["param_groups"][0]["initial_lr"] == 0.3, "and saves it"
    assert origin_of(str(runs / "fork")) == Origin(run=str(runs / "donor"), step=step)
    assert origin_of(str(runs / "donor")) is None


def test_a_batch_that_grew_scales_the_rate_of_the_branch(make: Make, runs: Path) -> None:
    grows = {"batch": BatchSchedule({1: 16}), "rate": LinearScaling()}
    run(make("donor", **grows), "local")
    step = newest_stored_step(str(runs / "donor"))
    assert step == STEPS + STEPS / 2
    fork(str(runs / "donor"), step, str(runs / "fork"))
    seen: dict[str, Any] = {}
    run(make("fork", lr=0.05, epochs=3, seen=seen, **grows), "local")
    assert [group["lr"] for group in seen["groups"]] == [0.05], "scaled within a step only"
    ours, theirs = (newest_of(runs / name).shards[0]["batching"] for name in ("fork", "donor"))
    assert ours == theirs and (ours["base"], ours["batch"]) == (8, 16)


def test_only_a_run_without_commits_can_begin_as_a_branch(make: Make, runs: Path) -> None:
    run(make("donor"), "local")
    with pytest.raises(InvalidOption, match=rf"{runs}/donor has a checkpoint of step {2 * STEPS}"):
        fork(str(runs / "donor"), STEPS, str(runs / "donor"))
    with pytest.raises(InvalidOption, match=rf"{runs}/nobody has no checkpoint of step 3, and no other one"):
        fork(str(runs / "nobody"), 3, str(runs / "fork"))
    assert newest_stored_step(str(runs / "fork")) is None and origin_of(str(runs / "fork")) is None


def test_a_torn_commit_is_named(make: Make, runs: Path) -> None:
    run(make("donor"), "local")
    folder = runs / "donor" / "checkpoints" / f"step-{2 * STEPS:09d}"
    assert pin(str(runs / "donor")) == 2 * STEPS
    content = bytearray((folder / "shard-00000.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "shard-00000.pt").write_bytes(content)
    fork(str(runs / "donor"), 2 * STEPS, str(runs / "from-held"))
    shutil.rmtree(runs / "donor" / "pinned")
    with pytest.raises(
        CorruptFile, match=rf"the checkpoint in {folder} is corrupt \(the checksum of shard 0 is wrong\)"
    ):
        fork(str(runs / "donor"), 2 * STEPS, str(runs / "fork"))
    assert newest_stored_step(str(runs / "fork")) is None
    assert pin(str(runs / "donor")) == 2 * STEPS - 2, "the newest that is whole"


def test_what_is_held_outlives_the_commits_of_its_run(make: Make, runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    donor = str(runs / "donor")
    assert pin(donor) is None and newest_stored_step(donor) is None
    pinned: list[int | None] = []

    def holds(event: Any, _: Any) -> None:
        if isinstance(event, EpochEnded):
            pinned.append(pin(donor))

    run(make("donor", checkpoint_every=1, keep_last=1, epochs=5), "local", [holds])
    # Every epoch but the last is reported before the checkpoint at its end is written.
    assert pinned == [3, 7, 11, 15, 20]
    assert newest_stored_step(donor) == 20
    assert fork(donor, 11, str(runs / "early")) == 11
    assert newest_of(runs / "early").cursor.epoch == 2
    assert sorted(path.name[-2:] for path in (runs / "donor" / "pinned").iterdir()) == ["11", "15", "20"]
    assert fork(donor, 7, str(runs / "late")) == 20
    assert f"The checkpoint of step 7 in {donor} was deleted; forking from step 20." in caplog.text


def test_a_commit_that_is_about_to_come_is_waited_for(make: Make, runs: Path) -> None:
    donor = str(runs / "donor")
    run(make("donor", epochs=1), "local")
    flushed: list[int] = []

    def flush() -> None:
        flushed.append(1)
        if len(flushed) == 3:
            run(make("donor", epochs=2), "local")

    assert pin(donor, at_least=2 * STEPS, wait_s=60.0, flush=flush) == 2 * STEPS
    assert len(flushed) == 3
    assert pin(donor, at_least=99, wait_s=0.05) == 2 * STEPS, "what there is"
    run(make("other", epochs=3, checkpoint_every=1, keep_last=4), "local")
    assert pin(str(runs / "other"), at_least=2 * STEPS + 2) == 2 * STEPS + 2, "not what came after it"


def test_a_branch_that_was_cut_short_is_made_again(make: Make, runs: Path) -> None:
    run(make("donor"), "local")
    fresh = runs / "fork" / "checkpoints" / f"step-{2 * STEPS:09d}"
    fork(str(runs / "donor"), 2 * STEPS, str(runs / "fork"))
    (fresh / "checkpoint.json").unlink()
    assert origin_of(str(runs / "fork")) is None
    assert fork(str(runs / "donor"), 2 * STEPS, str(runs / "fork")) == 2 * STEPS
    assert newest_of(runs / "fork").step == 2 * STEPS
    (runs / "blocked" / "fork.json").mkdir(parents=True)
    with pytest.raises(WriteFailed, match=f"the fork could not be written to {runs}/blocked"):
        fork(str(runs / "donor"), 2 * STEPS, str(runs / "blocked"))


def test_another_model_or_plan_is_refused_as_ever(make: Make, runs: Path) -> None:
    run(make("donor"), "local")
    for name in ("wider", "other-plan"):
        fork(str(runs / "donor"), 2 * STEPS, str(runs / name))
    with pytest.raises(BadJob, match="checkpoint of step 8 does not fit the model"):
        run(make("wider", width=5, epochs=3), "local")
    with pytest.raises(CursorMismatch, match="the run 'other-plan' was made with plan"):
        run(make("other-plan", plan_seed=4, epochs=3), "local")


def test_a_branch_of_a_finished_donor_is_finished(make: Make, runs: Path) -> None:
    run(make("donor"), "local")
    fork(str(runs / "donor"), 2 * STEPS, str(runs / "fork"))
    seen: dict[str, Any] = {}
    assert run(make("fork", seen=seen), "local").epochs_done == 2
    assert not seen, "nothing is left to train"


def test_a_branch_to_another_storage(make: Make, runs: Path) -> None:
    run(make("donor"), "local")
    fork(str(runs / "donor"), 2 * STEPS, "memory://branching/sweep/t.1")
    assert newest_stored_step("memory://branching/sweep/t.1") == 2 * STEPS
    assert fork("memory://branching/sweep/t.1", 2 * STEPS, "memory://branching/sweep/t.2") == 2 * STEPS
    result = load_result("memory://branching/sweep/t.2")
    assert result is not None and (result.name, result.path) == ("t.2", resolve("memory://branching/sweep/t.2").uri)
    assert origin_of("memory://branching/sweep/t.2") == Origin(run="memory://branching/sweep/t.1", step=2 * STEPS)


def test_a_fork_takes_no_checkpoint_that_was_written_after_its_attempt_was_taken_over(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    files = CheckpointFiles(CheckpointConfig(uri=f"{folder}/checkpoints", attempt=1))
    assert create_attempt(folder, 1) is not None
    files.write(EncodedCheckpoint.build({"step": 20}, {0: b"state"}))
    assert create_attempt(folder, 2) is not None
    files.write(EncodedCheckpoint.build({"step": 25}, {0: b"late"}))
    assert newest_stored_step(folder) == 20
    assert pin(folder, at_least=25) == 20
