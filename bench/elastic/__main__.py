"""Elastic bench: cost of a change of membership, for Forebay's drivers and the stock executors, side by side.

    make bench-elastic
    make bench-elastic BENCH_ARGS="--repeats 1 --systems forebay"

Each run is a process with a Ray of its own. Systems take turns, so that a disturbance of the machine affects all of
them. A run that does not answer a request within `director.LIMIT_S` is reported as late, and its later requests are
skipped. Writes elastic.md, elastic.json and elastic.png to docs/benchmarks.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.elastic.log import Answer, EventLog, answers, commits, steps, unanswered
from bench.elastic.report import plot, report, table
from bench.elastic.setting import ElasticSetting
from bench.machine import machine
from bench.processes import REPOSITORY, child_session, command, environment, last_line

CHILD = "bench.elastic.child"
PATIENCE_S = {"changes": 150.0, "node": 90.0, "commit": 75.0}
END_S = 20.0  # Time limit for a run to end after its last request. One that hangs never ends.
POLL_S = 0.25
MEASURES = {
    "changes": ("grow", "kill a worker", "shrink", "commit"),
    "node": ("kill a node",),
    "commit": ("commit 400 MB",),
}
WIDE = 10_000  # a layer of 400 MB


@dataclass(frozen=True)
class ElasticEntry:
    """One system: its name in the document, its file in `bench/elastic/systems/`, and the variant."""

    name: str
    system: str
    variant: str = ""


ENTRIES = (
    ElasticEntry("Ray Train", "stock_ray"),
    ElasticEntry("Elastic Horovod", "stock_horovod"),
    ElasticEntry("Forebay, Ray Train", "forebay_driver", "ray"),
    ElasticEntry("Forebay, Horovod", "forebay_driver", "horovod"),
)


@dataclass
class Measured:
    """Measurements of one system over all repeats: lists by `report.Row.measure`.

    `missing` has the reason for each figure that a repeat lacks.
    """

    measured: dict[str, list[float]] = field(default_factory=dict)
    phases: dict[str, list[Any]] = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def take(self, scenario: str, lines: list[dict[str, Any]]) -> None:
        """Add the log of one run."""
        if not steps(lines):
            for measure in MEASURES[scenario]:
                self.missing.setdefault(measure, []).append("did not start, see below")
            return
        if scenario != "node":
            self._add("commit 400 MB" if scenario == "commit" else "commit", commits(lines))
        for answer in answers(lines):
            self._take_answer(answer)
        for act, reason in unanswered(lines).items():
            self.missing.setdefault(act, []).append(reason)
            self.errors.append(f"{scenario}: {act}: {reason}")

    def _take_answer(self, answer: Answer) -> None:
        first, *later = answer.changes
        self._add(answer.what, [first.gap_s])
        self._add(f"{answer.what}, back", [change.gap_s for change in later])
        kind = "killed" if answer.what.startswith("kill") else "planned"
        self._add(f"redone, {kind}", [answer.redone])
        self.phases.setdefault(answer.what, []).append(answer.phases)

    def _add(self, measure: str, values: Sequence[float]) -> None:
        if values:
            self.measured.setdefault(measure, []).extend(values)


def main() -> None:
    given = _options()
    # The run in progress must end with this process, as it does at an interrupt.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    started, ran_on = time.time(), machine()
    entries = [entry for entry in ENTRIES if not given.systems or given.systems in entry.system + entry.name.lower()]
    found = {entry.name: Measured() for entry in entries}
    turns = [(entry, scenario) for _ in range(given.repeats) for scenario in given.scenarios for entry in entries]
    for number, (entry, scenario) in enumerate(turns):
        print(f"{number + 1}/{len(turns)} {entry.name}: {scenario}", flush=True)
        _turn(entry, scenario, found[entry.name], given.step)
    document = {
        "machine": ran_on,
        "options": {"repeats": given.repeats, "step_s": given.step},
        "took_s": time.time() - started,
        "systems": {name: asdict(measured) for name, measured in found.items()},
    }
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "elastic.json").write_text(json.dumps(document, indent=1) + "\n")
    (given.out / "elastic.md").write_text(report(document))
    plot(document, given.out / "elastic.png")
    print(table(document["systems"], given.repeats))
    print(f"{given.out}/elastic.md, .json, .png after {document['took_s'] / 60:.0f} minutes")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--systems", default="", help="only those with this in their name, lower case")
    parser.add_argument("--scenarios", nargs="+", choices=[*PATIENCE_S], default=[*PATIENCE_S])
    parser.add_argument("--step", type=float, default=0.1, help="seconds that a step sleeps")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "benchmarks")
    return parser.parse_args()


def _turn(entry: ElasticEntry, scenario: str, measured: Measured, step_s: float) -> None:
    """Run one scenario in a process of its own. Its log counts however the run ended."""
    # Paths of Ray's sockets must be short.
    with tempfile.TemporaryDirectory(prefix="fb-", ignore_cleanup_errors=True) as folder:
        log = EventLog(f"{folder}/log")
        width = WIDE if scenario == "commit" else ElasticSetting.width
        setting = ElasticSetting(
            scenario=scenario, log=log.path, folder=folder, variant=entry.variant, step_s=step_s, width=width
        )
        how = _start(entry.system, setting, log, Path(folder) / "output")
        lines = log.read()
        measured.take(scenario, lines)
        failed = [line["error"] for line in lines if line["what"] == "failed"]
        if how or failed:
            measured.errors.append(f"{scenario}: {'; '.join(filter(None, [how, *failed]))}")
            print(f"   {measured.errors[-1]}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)


def _start(system: str, setting: ElasticSetting, log: EventLog, output: Path) -> str:
    """Run a system to its end or its time limit. Returns the reason of a failure, or an empty text."""
    # Variables that a Ray job or a notebook sets for its own process must not reach another Ray.
    variables = environment("RAY_")
    variables |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    line = command(CHILD, system, json.dumps(asdict(setting)))
    with child_session(line, output, variables) as child:
        how = _wait(child, log, PATIENCE_S[setting.scenario])
    return f"{how}; last words: {last_line(output)}" if how else ""


def _wait(child: subprocess.Popen[bytes], log: EventLog, patience_s: float) -> str:
    """Wait until the process has ended or is late. Returns the reason if its end was not regular."""
    late_at, words = time.monotonic() + patience_s, f"did not end within {patience_s:.0f} s"
    is_over = False
    while time.monotonic() < late_at:
        with suppress(subprocess.TimeoutExpired):
            code = child.wait(POLL_S)
            return "" if code == 0 else f"ended with code {code}"
        if not is_over and any(line["what"] == "over" for line in log.read()):
            is_over, late_at = True, time.monotonic() + END_S
            words = f"did not end within {END_S:.0f} s of the last act"
    return words


if __name__ == "__main__":
    main()
