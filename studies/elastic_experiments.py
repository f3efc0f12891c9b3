"""Experiments of "Elastic Deep Learning with Horovod on Ray" (Uber, 2021), scaled to one machine.

python studies/elastic_experiments.py                                  # both drivers, three seeds
python studies/elastic_experiments.py --driver ray --seeds 1 --epochs 6 --only walk
python studies/elastic_experiments.py --data s3://lake/pictures --epochs 90 --period-s 60

Each experiment trains studies/elastic_cnn.py and changes the number of workers by its own plan. It writes accuracy by
epoch, workers by time, and accuracy by time into docs/experiments/elastic.md with plots and a table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import ray
import typer
from elastic_cnn import job
from random_resize import RandomResize
from reports.elastic import write_report
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import forebay as fb
from forebay.errors import ForebayError
from forebay.events import EpochEnded, Event, Reported, Started
from forebay.ray_cluster.session import train_environment
from forebay.training.callbacks.scaling import ScaleSchedule
from forebay.training.runs.control import Callback, Control

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Number of workers at first, and the callbacks that change it: a function of (period in s, epochs, seed)."""

    title: str
    start: int
    callbacks: Callable[[float, int, int], Sequence[Callback]] = lambda _period_s, _epochs, _seed: ()


def doubling(first: int, every: int, epochs: int) -> dict[int, int]:
    """Return a schedule that doubles `first` workers after every `every` epochs. The job's bounds limit it."""
    return {number * every: first << number for number in range(-(-epochs // every))}


EXPERIMENTS = {
    "fixed": Experiment(title="fixed {max}", start=0),
    "walk": Experiment(
        title="+-1 every {period:g} s",
        start=4,
        callbacks=lambda period_s, _epochs, seed: [RandomResize(every_s=period_s, step=1, seed=seed)],
    ),
    "leap": Experiment(
        title="+-3 every {triple:g} s",
        start=4,
        callbacks=lambda period_s, _epochs, seed: [RandomResize(every_s=3 * period_s, step=3, seed=seed)],
    ),
    "two": Experiment(title="fixed 2", start=2),
    "double": Experiment(
        title="2, doubling to {max} by epoch",
        start=2,
        callbacks=lambda _period_s, epochs, _seed: [ScaleSchedule(doubling(2, max(epochs // 3, 1), epochs))],
    ),
}


@dataclass(slots=True)
class ExperimentRecorder:
    """Callback that records the data of the plots: seconds since the first step, rows trained, workers, accuracies."""

    began: float = 0.0
    workers: int = 0
    steps: list[dict[str, float]] = field(default_factory=list)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    resizes: list[dict[str, float]] = field(default_factory=list)

    def __call__(self, event: Event, _control: Control) -> None:
        now = time.monotonic()
        if isinstance(event, Started):
            if self.steps and event.world_size != self.workers:
                self.resizes.append({"at_s": now - self.began, "old": self.workers, "new": event.world_size})
            self.workers = event.world_size
        elif isinstance(event, Reported):
            self.began = self.began or now
            self.steps.append({"at_s": now - self.began, "rows": event.rows, "workers": self.workers})
        elif isinstance(event, EpochEnded):
            rows = self.steps[-1]["rows"] if self.steps else 0
            self.evaluations.append({
                "epoch": event.epoch + 1, "at_s": now - self.began, "rows": rows, "workers": self.workers,
                "accuracy": event.metrics["accuracy"], "loss": event.metrics["loss"],
            })  # fmt: skip


def main(
    data: Annotated[str, typer.Option(help="Parquet with image and label; the digits by default.")] = "",
    driver: Annotated[list[str] | None, typer.Option(help="ray, horovod; both by default.")] = None,
    only: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(EXPERIMENTS)}.")] = None,
    seeds: int = 3,
    epochs: int = 12,
    period_s: Annotated[float, typer.Option(help="Seconds between changes by one worker (thrice for three).")] = 6.0,
    max_workers: int = 8,
    work: Annotated[Path, typer.Option(help="Folder of runs and the cache.")] = REPOSITORY / "runs",
    out: Annotated[Path, typer.Option(help="Folder of the document.")] = REPOSITORY / "docs" / "experiments",
) -> None:
    """Run every experiment with every driver and seed, one after the other, and write the document."""
    console = Console()
    drivers, names = driver or ["ray", "horovod"], only or list(EXPERIMENTS)
    options = {"data": data, "epochs": epochs, "max_workers": max_workers}
    runs: list[dict[str, Any]] = []
    bars = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    # Logical CPUs: the workers share the real ones.
    with train_environment(), Progress(*bars, console=console) as progress:
        ray.init(address="local", num_cpus=max_workers + 1, include_dashboard=False, log_to_driver=False)
        task = progress.add_task("", total=len(drivers) * len(names) * seeds)
        for seed in range(seeds):
            for name in names:
                for each in drivers:
                    progress.update(task, description=f"{each}: {name}, seed {seed}")
                    run = _run(name, each, seed, period_s, work, options)
                    runs.append(run)
                    progress.console.print(_line(run))
                    progress.advance(task)
        ray.shutdown()
    out.mkdir(parents=True, exist_ok=True)
    found = {"options": options | {"period_s": period_s, "seeds": seeds, "drivers": drivers}, "runs": runs}
    (out / "elastic.json").write_text(json.dumps(found) + "\n")
    for path in write_report(found, out):
        console.print(f"wrote {path}")


def _run(name: str, driver: str, seed: int, period_s: float, work: Path, options: dict[str, Any]) -> dict[str, Any]:
    experiment, recorder = EXPERIMENTS[name], ExperimentRecorder()
    most = int(options["max_workers"])
    made = job(
        **options,
        start=min(experiment.start or most, most),
        seed=seed,
        storage=str(work),
        cache=str(work / "cache"),
        name=f"elastic-{name}-{driver}-{seed}-{int(time.time())}",
    )
    facts = {
        "name": name,
        "title": experiment.title.format(max=most, period=period_s, triple=3 * period_s),
        "driver": driver,
        "seed": seed,
    }
    try:
        callbacks = [recorder, *experiment.callbacks(period_s, made.epochs, seed)]
        result = fb.run(replace(made, checkpoint_every=1), driver=driver, callbacks=callbacks)
    except ForebayError as error:
        return facts | {"error": str(error)}
    return facts | {
        "failures": result.failures,
        "steps": recorder.steps,
        "evaluations": recorder.evaluations,
        "resizes": recorder.resizes,
    }


def _line(run: dict[str, Any]) -> str:
    title = f"{run['driver']} {run['title']} seed {run['seed']}:"
    if "error" in run:
        return f"{title} {run['error'].splitlines()[0]}"
    last = run["evaluations"][-1]
    return f"{title} accuracy {last['accuracy']:.4f} after {last['at_s']:.0f} s, {len(run['resizes'])} resizes"


if __name__ == "__main__":
    typer.run(main)
