"""Study: random search, ASHA and population based training of a click model on one budget.

python studies/sweep_study.py                                   # ten seeds, about half an hour on two cores
python studies/sweep_study.py --seeds 1 --only random --only pbt

Every method starts from the same draws of a seed, has the same slots, and may train the same total number of epochs.
Trials are chosen on one half of the held-out rows and reported on the other, which no scheduler sees. Writes
docs/experiments/sweeps.{json,md,png}.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import ray
import torch
import typer
from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining, TrialScheduler
from reports.sweep_study import best_test, write_report
from rich.console import Console
from torch import Tensor, nn

import forebay as fb
from forebay.events import EpochEnded, Event, Started
from forebay.testing.data.click_log import write_click_log
from forebay.training.runs.control import Control
from forebay.training.worker.roc_area import Scores, roc_areas

REPOSITORY = Path(__file__).resolve().parents[1]
ROWS = 40_000
FLOATS = [f"f{number}" for number in range(13)]
IDS = [f"c{number}" for number in (0, 1, 2, 3, 4, 5, 13, 14, 15, 16, 17, 18)]
"""Columns with at most 400 ids: rarer ids cannot be learned from so few rows."""
BUCKETS, DIM, HIDDEN = 1 << 12, 4, 64

RANGES: Mapping[str, tuple[float, float]] = {"lr": (1e-5, 1e-1), "weight_decay": (1e-6, 1e-1), "dropout": (0.0, 0.6)}
POPULATION = 8
EPOCHS = 12
BUDGET = POPULATION * EPOCHS
ASHA_TRIALS = 22
"""With two epochs before the first halving, this comes to about `BUDGET` epochs. Later ones are not counted."""


def job(
    data: str,
    lr: float = 0.1,
    weight_decay: float = 1e-5,
    dropout: float = 0.1,
    epochs: int = EPOCHS,
    seed: int = 0,
    cache: str = "~/.cache/forebay",
    storage: str = "runs",
    name: str | None = None,
) -> fb.Job:
    """Small click model, trained by plain SGD with momentum, so that the learning rate is decisive.

    Args:
        data: Folder of a click log.
        dropout: Dropout between the two layers.
    """
    transform = fb.Transform(
        floats=fb.Dense(FLOATS), ids=fb.Categorical(IDS, buckets=BUCKETS), label=fb.Label("clicked")
    )
    training, held_out = fb.scan(data).split(0.5, seed=0)
    return fb.Job(
        train=partial(train, lr=lr, weight_decay=weight_decay, dropout=dropout),
        resources=fb.Resources(gpus=0),
        data=fb.Data(plan=fb.build_plan(training, seed=seed, lanes=4), transform=transform, global_batch=256),
        held_out=fb.Data(plan=fb.build_plan(held_out, lanes=4, shuffle=False), transform=transform, global_batch=4096),
        epochs=epochs,
        seed=seed,
        cache=fb.CacheSpec(path=cache, quota_bytes=1 << 30),
        storage=storage,
        name=name,
    )


def train(worker: fb.Worker, lr: float, weight_decay: float, dropout: float) -> None:
    torch.set_num_threads(1)  # As many trials as slots share the cores.
    optimizer = partial(torch.optim.SGD, lr=lr, momentum=0.9, weight_decay=weight_decay)
    fb.fit(worker, StudyClicks(dropout), optimizer, nn.BCEWithLogitsLoss(), evaluate)


class StudyClicks(nn.Module):
    """Logit of a click: floats and embedded ids through one hidden layer."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.table = nn.Embedding(BUCKETS, DIM)
        nn.init.normal_(self.table.weight, std=0.01)
        inputs = len(FLOATS) + DIM * len(IDS)
        self.layers = nn.Sequential(nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Dropout(dropout), nn.Linear(HIDDEN, 1))

    def forward(self, batch: fb.Batch) -> Tensor:
        return self.layers(torch.cat([batch["floats"], self.table(batch["ids"]).flatten(1)], dim=1))[:, 0]


def evaluate(worker: fb.Worker, model: nn.Module) -> dict[str, float]:
    """AUC on each half of the held-out rows: trials are chosen by `auc` and reported by `test_auc`."""
    chosen, tested = Scores(), Scores()
    for batch in worker.held_out() or ():
        logits, labels = model(batch), batch["label"]
        chosen.add(logits[::2], labels[::2])
        tested.add(logits[1::2], labels[1::2])
    areas = {"auc": chosen, "test_auc": tested}
    return {name: roc_areas(scores, worker.world, worker.all_reduce)[-1].value for name, scores in areas.items()}


@dataclass(slots=True)
class EpochLedger:
    """Callback that logs every epoch that a trial has trained, in the order of their ends."""

    log: str
    run: str = field(default="", init=False)

    def __call__(self, event: Event, _control: Control) -> None:
        if isinstance(event, Started):
            self.run = event.name
        elif isinstance(event, EpochEnded):
            told = {name: event.metrics[name] for name in ("auc", "test_auc")}
            scores = {name: score if math.isfinite(score) else None for name, score in told.items()}
            # One write of one line: all trials append to the same file.
            with Path(self.log).open("a") as file:
                file.write(json.dumps({"run": self.run, "epoch": event.epoch + 1, **scores}) + "\n")


def ledger(log: str) -> list[EpochLedger]:
    """Callbacks of a trial."""
    return [EpochLedger(log)]


def space() -> dict[str, Any]:
    return {
        "lr": tune.loguniform(*RANGES["lr"]),
        "weight_decay": tune.loguniform(*RANGES["weight_decay"]),
        "dropout": tune.uniform(*RANGES["dropout"]),
    }


def within(config: dict[str, Any]) -> dict[str, Any]:
    """Clip a config that PBT has changed to the ranges that all methods search."""
    clipped = {name: float(np.clip(config[name], low, high)) for name, (low, high) in RANGES.items()}
    return {**config, **clipped}


def asha() -> TrialScheduler:
    return ASHAScheduler(time_attr="training_iteration", max_t=EPOCHS, grace_period=2, reduction_factor=3)


def pbt() -> TrialScheduler:
    return PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations=space(),
        # The ranges span decades. Steps of a fifth, as in the paper, would take the whole run to have an effect.
        perturbation_factors=(2.0, 0.5),
        custom_explore_fn=within,
        log_config=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """Number of trials at the start, and the scheduler. None trains all trials to the end."""

    title: str
    num_trials: int
    scheduler: Callable[[], TrialScheduler] | None


METHODS = {
    "random": Method(title="random search", num_trials=POPULATION, scheduler=None),
    "asha": Method(title="ASHA", num_trials=ASHA_TRIALS, scheduler=asha),
    "pbt": Method(title="PBT", num_trials=POPULATION, scheduler=pbt),
}


def main(
    only: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(METHODS)}.")] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 10,
    first: Annotated[int, typer.Option(help="First seed. Those from 100 on were used to choose sizes.")] = 0,
    work: Annotated[Path, typer.Option(help="Folder of runs, data and the cache.")] = REPOSITORY / "runs",
    out: Annotated[Path, typer.Option(help="Folder of the document.")] = REPOSITORY / "docs" / "experiments",
) -> None:
    """Run every method with every seed, one sweep after the other, and write the document.

    Continues with the results in sweeps.json if they were made with the same settings.
    """
    console = Console()
    for folder in (work, out):
        folder.mkdir(parents=True, exist_ok=True)
    log = write_click_log(work / f"clicks-{ROWS}", rows=ROWS, files=4, row_groups_per_file=4)
    fixed = {"data": str(log.path), "cache": str(work / "cache")}
    found = _found(out / "sweeps.json", log.best_auc)
    done = {(swept["method"], swept["seed"]) for swept in found["sweeps"]}
    # Logical CPUs, as many as members of the population, so that no member waits for another with any method.
    ray.init(address="local", num_cpus=POPULATION, include_dashboard=False, log_to_driver=False)
    for seed, name in product(range(first, first + seeds), only or METHODS):
        if (name, seed) in done:
            continue
        swept = _sweep(name, seed, work, fixed)
        found["sweeps"].append(swept)
        (out / "sweeps.json").write_text(json.dumps(found) + "\n")
        console.print(
            f"{METHODS[name].title}, seed {seed}: test AUC {best_test(swept, BUDGET):.4f} with "
            f"{len(swept['epochs'])} epochs of {swept['trials']} trials in {swept['seconds']:.0f} s"
        )
    ray.shutdown()
    for path in write_report(found, out):
        console.print(f"wrote {path}")


def _found(path: Path, best_auc: float) -> dict[str, Any]:
    """Earlier results with these settings, or empty ones."""
    settings = {
        "budget": BUDGET,
        "epochs": EPOCHS,
        "slots": POPULATION,
        "rows": ROWS,
        "ranges": {name: list(bounds) for name, bounds in RANGES.items()},
        "best_auc": best_auc,
        "titles": {name: method.title for name, method in METHODS.items()},
    }
    before = json.loads(path.read_text()) if path.exists() else {}
    sweeps = before.pop("sweeps", [])
    return {**settings, "sweeps": sweeps if before == settings else []}


def _sweep(name: str, seed: int, work: Path, fixed: Mapping[str, Any]) -> dict[str, Any]:
    method = METHODS[name]
    title = f"study-{name}-{seed}-{int(time.time())}"
    path = work / f"{title}.jsonl"
    # PBT of Ray Tune draws from this generator.
    random.seed(seed)
    sweep = fb.Sweep(
        job,
        space(),
        "auc",
        "max",
        num_trials=method.num_trials,
        fixed={**fixed, "seed": seed, "log": str(path)},
        driver="local",
        scheduler=method.scheduler() if method.scheduler else None,
        callbacks=ledger,
        name=title,
        storage=str(work),
        seed=seed,
    )
    began = time.monotonic()
    result = fb.run_sweep(sweep, show=False)
    seconds = time.monotonic() - began
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {
        "method": name,
        "seed": seed,
        "seconds": seconds,
        "trials": len(result.table),
        "branches": len({line["run"] for line in lines}) - len(result.table),
        "best_config": {name: result.best_config[name] for name in RANGES},
        # In the order of their ends.
        "epochs": [[line["auc"], line["test_auc"]] for line in lines],
    }


if __name__ == "__main__":
    typer.run(main)
