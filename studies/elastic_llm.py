"""A fine-tuning that shrinks and grows in mid-epoch, 2 -> 1 -> 3 workers, beside the same run undisturbed.

python studies/elastic_llm.py              # minutes on two cores; writes docs/experiments/elastic-llm.*
python studies/elastic_llm.py --report     # only the page and the picture, from the numbers
"""

from __future__ import annotations

import argparse
import json
import logging
import runpy
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import ray
from matplotlib.figure import Figure
from reports.page import write_study

import forebay as fb
from forebay.events import Event, Reported
from forebay.ray_cluster.session import train_environment
from forebay.testing.drivers.bench import DriverBench
from forebay.testing.drivers.events import StepAttempt
from forebay.testing.drivers.recorded_worker import recorded, recorded_losses
from forebay.training.runs.control import Control

ROOT = Path(__file__).parents[1]
CHANGES = ((0.2, 1), (0.4, 3))
"""Share of the steps after which the number of workers changes, and the number."""
OPTIONS = {"seq_len": 128, "overflow": "split", "global_batch": 12, "per_device_batch": 4, "epochs": 1, "lr": 4e-3}

Found = Mapping[str, Any]


class Resize:
    """Callback that asks for another number of workers at given steps."""

    def __init__(self, targets: Mapping[int, int]) -> None:
        self._left = sorted(targets.items())

    def __call__(self, event: Event, control: Control) -> None:
        if isinstance(event, Reported) and self._left and event.step >= self._left[0][0]:
            control.resize(self._left.pop(0)[1])


def language_model_job(folder: Path, name: str, *, chats: int, step_s: float = 0.0, **changes: Any) -> fb.Job:
    """Job of jobs/finetune_llm.py with the tiny model, recorded below `folder` as `DriverBench` reads it."""
    made = runpy.run_path(str(ROOT / "jobs" / "finetune_llm.py"))["job"](
        **OPTIONS, chats=chats, name=name, storage=str(folder / "runs"), cache=str(folder / "cache")
    )
    log = folder / "rows" / name
    log.mkdir(parents=True, exist_ok=True)
    options = {"checkpoint_every": 1, "held_out": None, **changes}
    return replace(made, train=partial(recorded, made.train, str(log), step_s), **options)


def study(folder: Path, *, chats: int, step_s: float, driver: str) -> Found:
    """Train twice: with 2 workers, and with 2, 1 and 3."""
    bench = DriverBench(folder)
    straight = language_model_job(folder, "straight", chats=chats, workers=2)
    steps = -(-straight.data.plan.num_rows // straight.data.global_batch)
    targets = {round(share * steps): workers for share, workers in CHANGES}
    elastic = fb.Elastic(min_workers=1, max_workers=3, start=2)
    changed = language_model_job(folder, "changed", chats=chats, step_s=step_s, workers=1, elastic=elastic)
    with _cluster(driver):
        fb.run(straight, driver)
        fb.run(changed, driver, [Resize(targets)])
    changes = gaps(firsts(bench, "changed"))
    assert len(changes) == len(CHANGES), "the run ended before its workers were ready: give more with --step-s"
    return {
        "driver": driver,
        "rows": straight.data.plan.num_rows,
        "losses": {name: list(recorded_losses(folder / "rows" / name).values()) for name in ("straight", "changed")},
        "workers": [each.size for each in firsts(bench, "changed")],
        "changes": changes,
        "redone": bench.steps_redone("changed"),
        "same_rows": bench.trained("changed") == bench.trained("straight"),
        "most_of_a_row": most_of_a_row(bench, "changed"),
    }


@contextmanager
def _cluster(driver: str) -> Iterator[None]:
    """Ray of four logical CPUs for the block, unless the driver needs none."""
    with train_environment():
        if driver == "ray":
            options = {"num_cpus": 4, "include_dashboard": False, "log_to_driver": False}
            ray.init(address="local", logging_level=logging.ERROR, **options)
        try:
            yield
        finally:
            ray.shutdown()


def firsts(bench: DriverBench, name: str) -> list[StepAttempt]:
    """Attempts of rank 0, in order."""
    return [each for each in bench.attempts(name) if each.rank == 0]


def gaps(attempts: Sequence[StepAttempt]) -> list[dict[str, float]]:
    """Seconds between the last step before each change and the first one after it, beyond a usual step."""
    pairs = list(pairwise(attempts))
    usual = statistics.median(after.time - before.time for before, after in pairs if after.size == before.size)
    return [
        {"step": after.step, "old": before.size, "new": after.size, "gap_s": after.time - before.time - usual}
        for before, after in pairs
        if after.size != before.size
    ]


def most_of_a_row(bench: DriverBench, name: str) -> int:
    """Times that the row that was trained on most often was trained on."""
    return max(Counter(row for rows in bench.trained(name).values() for row in rows).values())


def difference(found: Found) -> float:
    """Largest difference between the losses of a step."""
    return max(abs(one - other) for one, other in zip(*found["losses"].values(), strict=True))


def worlds(found: Found) -> str:
    """Numbers of workers of the changed run, one after another."""
    return ", then ".join(str(size) for size, _ in groupby(found["workers"]))


def picture(found: Found) -> Figure:
    """Workers and losses over steps, and the difference of the losses."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    workers, losses, apart = figure.subplots(3, 1, sharex=True, height_ratios=(1, 2, 1))
    straight, changed = found["losses"]["straight"], found["losses"]["changed"]
    steps = range(1, len(changed) + 1)
    workers.step(steps, found["workers"], where="mid", color="#1f77b4")
    workers.set(ylabel="workers", ylim=(0, 3.5), yticks=(1, 2, 3))
    losses.plot(steps, straight, color="#bbbbbb", linewidth=4, label="2 workers throughout")
    losses.plot(steps, changed, color="#d1495b", linewidth=1, label=f"{worlds(found)} workers")
    losses.set(ylabel="loss")
    losses.legend(frameon=False)
    apart.plot(steps, [max(abs(a - b), 1e-9) for a, b in zip(straight, changed, strict=True)], color="#22313f")
    apart.axhline(1e-5, color="grey", linestyle="--", linewidth=1)
    apart.set(ylabel="difference", xlabel="step", yscale="log")
    for each in found["changes"]:
        for axes in (workers, losses, apart):
            axes.axvline(each["step"] + 0.5, color="#cccccc", linewidth=1, zorder=0)
        workers.text(each["step"] + 1, 3.1, f"gap {each['gap_s']:.1f} s", fontsize=8)
    for axes in (workers, losses, apart):
        axes.grid(alpha=0.3)
    return figure


def page(found: Found) -> str:
    """Markdown page about the picture."""
    steps = len(found["losses"]["changed"])
    rows = [
        f"| {each['old']} to {each['new']} | after {each['step']} of {steps} | {each['gap_s']:.1f} |"
        for each in found["changes"]
    ]
    rows_text = "every step has the same rows" if found["same_rows"] else "STEPS DIFFER in their rows"
    return "\n".join([
        f"# A language model on {worlds(found)} workers",
        "`python studies/elastic_llm.py` runs `jobs/finetune_llm.py` (tiny model) twice.",
        f"These figures are of `--driver {found['driver']}`.",
        f"One run has 2 workers, the other {worlds(found)}. Changes are in the middle of an epoch.",
        f"The epoch has {found['rows']:,} packed rows in {steps} steps. A checkpoint is saved at every step.",
        "",
        "| workers | step | gap, s |",
        "|---|---|---|",
        *rows,
        "",
        "*Gap*: from the last step before the change to the first one after it, without the time of a usual step.",
        "",
        f"- Steps that were trained twice: {found['redone']}.",
        f"- Rows: {rows_text} as the undisturbed run. Most times that a row was trained on: {found['most_of_a_row']}.",
        f"- Losses: at most {difference(found):.1e} apart.",
        "",
        "![workers and loss over steps](elastic-llm.png)",
        "",
    ])  # fmt: skip


def write_report(found: Found, out: Path) -> list[Path]:
    """Write elastic-llm.json, .md and .png into `out`. Keeps what follows "## Reading"."""
    return write_study(out, "elastic-llm", found, page(found), picture(found))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chats", type=int, default=3000)
    parser.add_argument("--step-s", type=float, default=0.5, help="least seconds of a step of the changed run")
    parser.add_argument("--driver", default="ray", choices=("ray", "local"))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "experiments")
    parser.add_argument("--report", action="store_true", help="only the page and the picture, from the numbers")
    chosen = parser.parse_args(arguments)
    if chosen.report:
        found = json.loads((chosen.out / "elastic-llm.json").read_text())
    else:
        with tempfile.TemporaryDirectory() as folder:
            found = study(Path(folder), chats=chosen.chats, step_s=chosen.step_s, driver=chosen.driver)
    for path in write_report(found, chosen.out):
        print(path)


if __name__ == "__main__":
    main()
