"""Population-based training by Ray Tune: a trial continues from another trial's checkpoint with its own config."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining
from torch import nn
from torch.distributed.tensor import DTensor

from forebay.data.loader.data import Data
from forebay.data.plan.plan import build_plan
from forebay.data.sources.scan import scan
from forebay.data.transform.features.groups import Dense, Label
from forebay.data.transform.transform import Transform
from forebay.sweep.run_sweep import run_sweep
from forebay.sweep.sweep import Sweep
from forebay.sweep.trial.fork import Origin, origin_of
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.job.job import Job
from forebay.training.runs.result import load_result
from forebay.training.state.snapshot import Snapshot
from forebay.training.worker.worker import Worker

STEPS = 4
"""Steps per epoch of 32 rows."""


def train(worker: Worker, lr: float, starts: str) -> None:
    model, optimizer = worker.setup(nn.Linear(3, 1), partial(torch.optim.Adam, lr=lr))
    (group,) = optimizer.param_groups
    state = {"model": whole(model.state_dict()), "lr": group["lr"], "step": worker.step}
    if worker.world.is_first:
        torch.save(state, Path(starts) / f"{uuid.uuid4().hex}.pt")
    for batch in worker.loader():
        loss = (model(batch["x"])[:, 0] - batch["label"]).square().mean() * batch.weight
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        worker.commit(loss=loss, score=lr)


def whole(state: dict[str, Any]) -> dict[str, Any]:
    return {name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in state.items()}


def job(lr: float, data: str, starts: str, strategy: str, workers: int) -> Job:
    transform = Transform(x=Dense(["x1", "x2", "x3"]), label=Label("clicked", dtype="float32"))
    plan = build_plan(scan(data), seed=3, lanes=4)
    return Job(
        train=partial(train, lr=lr, starts=starts),
        data=Data(plan=plan, transform=transform, global_batch=8),
        epochs=4,
        checkpoint_every=STEPS,  # and no later checkpoint for which the one at the epoch's end is deleted
        keep_last=1,
        cache=None,
        strategy=strategy,
        workers=workers,
    )


@pytest.fixture
def starts(tmp_path: Path) -> Path:
    folder = tmp_path / "starts"
    folder.mkdir()
    return folder


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(("strategy", "workers"), [("ddp", 1), pytest.param("fsdp2", 2, marks=[pytest.mark.variation])])
def test_the_worse_trial_goes_on_from_the_better_one(
    parquet_folder: Callable[..., Path], starts: Path, tmp_path: Path, strategy: str, workers: int
) -> None:
    random.seed(0)
    # After two epochs, the worse half takes over the model of the better half, and half its rate.
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"lr": tune.uniform(0.001, 1.0)},
        quantile_fraction=0.5,
        resample_probability=0.0,
        perturbation_factors=(0.5, 0.5),
        synch=True,
        log_config=False,
    )
    data = str(parquet_folder({"a.parquet": [20], "b.parquet": [12]}))
    sweep = Sweep(
        job,
        {"lr": {"grid_search": [0.01, 0.1]}},
        "score",
        "max",
        num_trials=2,
        fixed={"data": data, "starts": str(starts), "strategy": strategy, "workers": workers},
        driver="local",
        scheduler=scheduler,
        name="pbt",
        storage=str(tmp_path / "runs"),
    )
    result = run_sweep(sweep, show=False)

    table = result.table.set_index("config/lr")
    assert sorted(table.index) == [pytest.approx(0.05), pytest.approx(0.1)]
    assert list(table["state"]) == ["finished", "finished"] and list(table["epochs"]) == [4, 4]
    assert_branched(table["run"].iloc[1], table["run"].iloc[0], starts)


def assert_branched(target: str, donor: str, starts: Path) -> None:
    step = 2 * STEPS
    assert origin_of(target) == Origin(run=donor, step=step)
    pinned: Any = DirectoryStore(Path(donor) / "pinned").newest()
    begun = [torch.load(path) for path in starts.iterdir()]
    (fork,) = [each for each in begun if each["lr"] == 0.05]
    assert fork["step"] == pinned.step == step
    for name, value in Snapshot.from_checkpoint(pinned).objects["model"].items():
        assert torch.equal(fork["model"][name], value)
    assert {each["lr"] for each in begun if each["step"] == 0} == {0.01, 0.1}
    trained: Any = DirectoryStore(Path(target) / "checkpoints").newest()
    assert trained.step == 4 * STEPS
    optimizer = Snapshot.from_checkpoint(trained).objects["optimizer"]
    assert optimizer["param_groups"][0]["lr"] == 0.05
    assert {each["step"].item() for each in optimizer["state"].values()} == {4 * STEPS}, "the donor's moments went on"
    ours, theirs = load_result(target), load_result(donor)
    assert ours is not None and theirs is not None
    scores = [[epoch.metrics["score"] for epoch in each.epochs] for each in (ours, theirs)]
    assert scores == [pytest.approx([0.1, 0.1, 0.05, 0.05]), pytest.approx([0.1] * 4)]
