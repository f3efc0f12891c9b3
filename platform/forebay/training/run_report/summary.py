"""Main numbers of a run.

For the tiles of its page, the comparison, and programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from forebay.runtime.formatting import bytes_text, count_text, metric_text_of, share_text, time_text
from forebay.training.run_report.incidents import incidents_of
from forebay.training.run_report.recorded_run import RecordedRun
from forebay.training.runs.timeline.cost import cost_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A number of a run.

    `value` is for programs, `text` for people.
    """

    title: str
    value: Callable[[RecordedRun], Any]
    text: Callable[[Any], str] = str


def _epochs(run: RecordedRun) -> str | None:
    return f"{run.result.epochs_done} of {run.result.num_epochs}" if run.result else None


def _without_steps_s(run: RecordedRun) -> float | None:
    gaps = [each.gap_s for each in incidents_of(run) if each.gap_s is not None]
    return sum(gaps) if gaps else None


def _repeated_steps(run: RecordedRun) -> int:
    return sum(each.repeated_steps or 0 for each in incidents_of(run))


MEASURES: tuple[Measure, ...] = (
    Measure(title="state", value=lambda run: run.state),
    Measure(title="epochs", value=_epochs),
    Measure(title="running time", value=lambda run: run.seconds, text=time_text),
    Measure(title="GPU hours", value=lambda run: cost_of(run.timeline).gpu_hours or None, text="{:.2f}".format),
    Measure(title="cost", value=lambda run: cost_of(run.timeline).amount, text="{:.2f}".format),
    Measure(title="rows per second", value=lambda run: run.rows_per_s, text=count_text),
    Measure(title="waiting for data", value=lambda run: run.wait_share, text=share_text),
    Measure(title="GPU busy", value=lambda run: run.gpu_share, text=share_text),
    Measure(title="blocks from the cache", value=lambda run: run.hit_share, text=share_text),
    Measure(title="failures", value=lambda run: run.result.failures if run.result else None),
    Measure(title="resizes", value=lambda run: run.num_events("Resized")),
    Measure(title="time without steps", value=_without_steps_s, text=time_text),
    Measure(title="repeated steps", value=_repeated_steps),
    Measure(title="rollbacks", value=lambda run: run.num_events("RolledBack")),
    Measure(title="warnings", value=lambda run: run.num_events("Warned")),
)
FAULTS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "hits": ("blocks from the cache", count_text),
    "peer_hits": ("blocks from other nodes", count_text),
    "data_node_blocks": ("blocks built by data nodes", count_text),
    "stores": ("blocks built and stored", count_text),
    "bypasses": ("blocks that did not fit", count_text),
    "hit_bytes": ("bytes from the cache", bytes_text),
    "source_bytes": ("bytes read from the source", bytes_text),
    "parquet_opens": ("Parquet files opened", count_text),
    "retries": ("reads tried again", count_text),
    "quarantined": ("cache files that were damaged", count_text),
}
"""Counters of the cache and of reads that the report shows, with their names."""


BEST = "best "
"""Begin of the name of a metric's best value."""
GROUPS = ("config", "data", "code", "packages", "machine")
"""Groups of facts about what was run."""


def measured(runs: Sequence[RecordedRun]) -> dict[str, list[str]]:
    """Return the text of each measure for each run.

    Metrics of the last epoch first, each with its best value where known. `-` where a run has none. A measure whose
    title is the name of a metric is the one "of the run".
    """
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for run in runs for name in run.metrics):
        found[name] = [_text(name, run.metrics.get(name)) for run in runs]
        best = [run.best(name) for run in runs]
        if any(best):
            found[f"{BEST}{name}"] = [_text(name, None if each is None else each.value) for each in best]
    for each in MEASURES:
        values = [each.value(run) for run in runs]
        title = f"{each.title} of the run" if each.title in found else each.title
        found[title] = ["-" if value is None else each.text(value) for value in values]
    return found


def _text(name: str, value: float | None) -> str:
    return "-" if value is None else metric_text_of(name, value)


def differences(runs: Sequence[RecordedRun]) -> dict[str, dict[str, list[Any]]]:
    """Return the facts in which runs differ.

    By group: config, data, code, packages, machine. None where a run has no such fact.

    >>> differences([])
    {}
    """
    found = {group: _values_of(runs, group) for group in GROUPS}
    changed = {
        group: {name: values for name, values in rows.items() if any(value != values[0] for value in values)}
        for group, rows in found.items()
    }
    return {group: rows for group, rows in changed.items() if rows}


def equal_facts(runs: Sequence[RecordedRun]) -> dict[str, dict[str, Any]]:
    """Return the facts in which all runs agree.

    By the same groups.

    >>> equal_facts([])
    {}
    """
    found = {group: _values_of(runs, group) for group in GROUPS}
    agreed = {
        group: {name: values[0] for name, values in rows.items() if all(value == values[0] for value in values)}
        for group, rows in found.items()
    }
    return {group: rows for group, rows in agreed.items() if rows}


def _values_of(runs: Sequence[RecordedRun], group: str) -> dict[str, list[Any]]:
    """Return the values of each fact of a group.

    One per run. None where a run has no such fact.
    """
    known = [getattr(run.origin, group) for run in runs]
    return {name: [each.get(name) for each in known] for name in dict.fromkeys(name for each in known for name in each)}


def facts_of(run: RecordedRun) -> dict[str, Any]:
    """Return the facts of a report, for programs."""
    return {
        "name": run.name,
        "path": run.path,
        "plan_id": run.result.plan_id if run.result else None,
        "metrics": dict(run.metrics),
        "best": {name: asdict(best) for name in run.metrics if (best := run.best(name))},
        **{each.title.replace(" ", "_"): each.value(run) for each in MEASURES},
        "counters": {name: run.counted(name) for name in FAULTS},
        "origin": asdict(run.origin),
        "epochs_done": [asdict(epoch) for epoch in run.epochs],
        "incidents": [asdict(each) for each in incidents_of(run)],
    }
