"""Report of the sweep bench: source bytes and wall time against their targets, and properties of each system."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bench.turns import markdown_table, spread

Result = Mapping[str, Any]

OURS = "Forebay"
PEERS = (
    "Ray Data in each trial",
    "Ray Data in each trial, materialized",
    "petastorm in each trial",
    "petastorm in each trial, disk cache",
)
"""Systems that the targets refer to: each of their trials reads its own data."""

_INTRODUCTION = """# {trials} trials over one dataset

All figures below come from one run of `make bench-sweep`.
The systems run one after the other, each in a process (and a Ray) of its own, in {repeats} rounds.
Figures are medians, with the range in brackets.
A sweep is {trials} trials, {concurrent} at a time, which differ only in their learning rate.
Each trial reads the same {rows:,} rows {epochs} times.
The data are 100 float32 columns and a label in {row_groups} row groups of Parquet, {data_mb:.0f} MB.
The transform is the same NumPy function everywhere: it applies scikit-learn's `QuantileTransformer` to 99 columns.
The model has two small layers, so that trials wait for data and for little else.

All systems read from one S3 server on this machine that counts the bytes it sends.
The count is independent of the clients, and includes the effect of every cache of a reader.
The server answers at once and at memory speed.
Slower storage would cost systems that read more even more.
*Wall time* is from the start of the sweep's process to the end of its last trial, including imports and \
the start of Ray.
*Transformed* counts the rows that the transform received.
Each trial checks the numbers of its rows: `bench/sweep/work.py`.
Each system's file in `bench/sweep/systems/` names the documentation of its configuration.

Machine: {cpu}, {cores} cores, {memory_gb:.0f} GB, {system}; load average before the run {load_before:.1f}.
The run took {minutes:.0f} minutes.

![source bytes and wall time](sweep.png)
"""
_SHARED = """The targets do not include "Ray Data materialized once for all": its trials share blocks, as Forebay's do.
It transforms everything before the first trial starts and keeps it in the object store until the sweep ends.
Blocks that do not fit are spilled to disk.
It returns rows in the order of the files."""
_MANY = """One node, a small dataset, up to 4 trials at a time, 2 epochs each.
*Read* is the number of times that a row group was read, as counted by the source.
*Transformed* is the number of times that its rows were transformed.
Both show the smallest and the largest value over the row groups.
The last column is the total that the source sent.
Blocks are named by their source and their transform, so trials with different transforms share nothing."""


def report(found: Mapping[str, Any]) -> str:
    """Text of sweep.md from the contents of sweep.json."""
    machine, options, results = found["machine"], found["options"], found["results"]
    facts = machine | options | {"row_groups": found["row_groups"], "data_mb": found["data_bytes"] / 1e6}
    facts |= {"memory_gb": machine["memory_bytes"] / 2**30, "minutes": found["took_s"] / 60}
    parts = [_INTRODUCTION.format(**facts), "## Targets", targets(results), _SHARED, "## Figures"]
    parts += [speeds(results, found["data_bytes"]), "## What each delivers", deliveries(results)]
    if found["many"]:
        parts += ["## How often Forebay reads and transforms a row group", _MANY, many(found["many"])]
    failures = dict.fromkeys(
        f"- {each.get('name', each.get('what'))}: {each['error']}"
        for each in [*results, *found["many"]]
        if "error" in each
    )
    if failures:
        parts += ["## Failed", "\n".join(failures)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def targets(results: Sequence[Result]) -> str:
    """Forebay against each peer. Ratios are of the same round: load that slows one turn also slows its neighbours."""
    rows = []
    for name in PEERS:
        for title, value, most in (("source bytes", _sent, 1 / 8), ("wall time", _wall, 1 / 2)):
            ratios = _ratios(results, name, value)
            if not ratios:
                rows.append((f"{title}, against {name}", f"<= {most:.3g}", "not measured", ""))
                continue
            verdict = "met" if statistics.median(ratios) <= most else "**missed**"
            rows.append((f"{title}, against {name}", f"<= {most:.3g}", spread(ratios, "{:,.3f}"), verdict))
    return markdown_table([("figure", "target", "measured", ""), *rows])


def speeds(results: Sequence[Result], data_bytes: int) -> str:
    """One line per system."""
    head = ("system", "source, MB", "times the data", "rows transformed, times the data", "wall time, s")
    rows = []
    for name, own in _measured(results).items():
        rows.append(
            (
                name,
                spread([_sent(result) / 1e6 for result in own], "{:,.0f}"),
                spread([_sent(result) / data_bytes for result in own], "{:,.2f}"),
                spread([result["read"]["transform_passes"] for result in own], "{:,.2f}"),
                spread([_wall(result) for result in own], "{:,.1f}"),
                spread([result["wall_s"] - result["sweep_s"] for result in own], "{:,.1f}"),
                _integrity(own),
            )
        )
    return markdown_table([(*head, "of it before the sweep started, s", "rows lost / repeated"), *rows])


def deliveries(results: Sequence[Result]) -> str:
    """Properties that each system states, and the measured shuffling of its rows."""
    rows = []
    for name, own in _measured(results).items():
        facts = own[0]["facts"]
        neighbours = statistics.median(trial["neighbours"] for result in own for trial in result["trials"])
        shuffled = f"{facts['shuffled']} ({neighbours:.0%} of rows follow their neighbour)"
        rows.append((name, facts["version"], facts["shares"], shuffled, facts["resumes"], facts["note"]))
    head = ("system", "version", "trials share", "shuffled", "after a crash", "note")
    return markdown_table([head, *rows])


def many(found: Sequence[Result]) -> str:
    """Sweeps of Forebay alone, by number of trials."""
    rows = [
        (
            result["what"],
            str(len(result["trials"])),
            _least_most(result["read"]["read"]),
            _least_most(result["read"]["transformed"]),
            f"{_sent(result) / 1e6:.1f} MB",
        )
        for result in found
        if "read" in result
    ]
    return markdown_table([("sweep", "trials that ended", "read, times", "transformed, times", "source"), *rows])


def summary(result: Result) -> str:
    """One line on the console for one finished sweep."""
    if "error" in result:
        return f"failed: {result['error'][:300]}"
    read = result["read"]
    sent, made = _least_most(read["sent"]), _least_most(read["transformed"])
    return (
        f"{result['wall_s']:.1f} s, {read['sent_bytes'] / 1e6:.1f} MB sent, row groups sent {sent} and transformed "
        f"{made} times, {len(result['trials'])} trials ended"
    )


def plot(found: Mapping[str, Any], path: Path) -> None:
    """Source bytes and wall time of every system: medians with ranges."""
    measured = _measured(found["results"])
    names = list(measured)
    figure = Figure(figsize=(11, 0.5 * len(names) + 1.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, value, label in (
        (panels[0], lambda result: _sent(result) / found["data_bytes"], "bytes from the source, times the data"),
        (panels[1], _wall, "wall time of the sweep, seconds"),
    ):
        for place, name in enumerate(names):
            values = [value(result) for result in measured[name]]
            middle = statistics.median(values)
            spread = [[middle - min(values)], [max(values) - middle]]
            color = "#1f5a96" if measured[name][0]["ours"] else "#9db8d6"
            panel.barh(place, middle, 0.7, xerr=spread, color=color, ecolor="#444444")
            text = f"{middle:.3g}"
            panel.annotate(text, (max(values), place), (4, 0), textcoords="offset points", va="center", size=8)
        panel.set_xlabel(label)
        panel.margins(x=0.12)  # Space for the number beside the longest bar.
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    figure.savefig(path, dpi=150)


def _measured(results: Sequence[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in results:
        if "read" in result:
            found.setdefault(result["name"], []).append(result)
    return found


def _ratios(results: Sequence[Result], name: str, value: Callable[[Result], float]) -> list[float]:
    measured = _measured(results)
    ours, theirs = ({result["repeat"]: value(result) for result in measured.get(each, [])} for each in (OURS, name))
    return [ours[repeat] / theirs[repeat] for repeat in sorted(ours.keys() & theirs.keys())]


def _sent(result: Result) -> float:
    return float(result["read"]["sent_bytes"])


def _wall(result: Result) -> float:
    return float(result["wall_s"])


def _integrity(own: Iterable[Result]) -> str:
    trials = [trial for result in own for trial in result["trials"]]
    epochs = sum(trial["epochs"] for trial in trials)
    lost, repeated = (sum(trial[what] for trial in trials) for what in ("lost", "repeated"))
    return f"{lost} / {repeated} in {epochs} epochs"


def _least_most(values: Sequence[float]) -> str:
    least, most = (f"{value:.3g}" for value in values)
    return least if least == most else f"{least} to {most}"
