"""Report of the preparation bench: targets, the figures of both runs of a job, and properties of each system."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bench.turns import markdown_table, spread

Result = Mapping[str, Any]

OURS, PEER = "Forebay", "Ray Data into Ray Train"
"""The targets refer to these two."""
SECOND_SHARE, EPOCH_RATIO = 0.02, 5.0

_INTRODUCTION = """# One job that prepares its data and trains

All figures below come from one run of `make bench-preparation`.
The job joins {rows:,} clicks with their users and with an aggregate over all clicks, and transforms 24 numbers.
It fits their moments and a vocabulary, and trains {epochs} epochs.
The join, the aggregate and the transform are the same Ray Data pipeline everywhere: `bench/preparation/pipeline.py`.
The model has two small layers, so that training waits for data and for little else.
Each system runs the same job twice, each time in a process and a Ray of its own, in {repeats} rounds.
Figures are medians, with the range in brackets.

All read from one S3 server on this machine that counts the bytes it sends; the data have {data_mb:.0f} MB.
The server answers at once and at memory speed.
Slower storage would cost systems that read more even more.
*Wall time* is from the start of the process to the end of training, including imports and the start of Ray.
*CPU time* is summed over all processes of the run, Ray's own included.
*Prepare* is the time until training could be started: Forebay's call of `from_ray_data`, and in Ray Data the \
aggregate, the fits and, if materialized, the transform.
Each run checks the numbers of its rows: `bench/preparation/work.py`.
Each system's file in `bench/preparation/systems/` names the documentation of its configuration.

Machine: {cpu}, {cores} cores, {memory_gb:.0f} GB, {system}; load average before the run {load_before:.1f}.
The run took {minutes:.0f} minutes.
"""
_NOTES = """Forebay sorts the rows by a key and writes them once more, which the peers do not.
Its first run pays for that, and for the cache of blocks in epoch 1."""


def report(found: Mapping[str, Any]) -> str:
    """Text of preparation.md from the contents of preparation.json."""
    machine, results = found["machine"], found["results"]
    facts = machine | found["options"] | {"data_mb": found["data_bytes"] / 1e6}
    facts |= {"memory_gb": machine["memory_bytes"] / 2**30, "minutes": found["took_s"] / 60}
    rows = found["options"]["rows"]
    parts = [_INTRODUCTION.format(**facts), "## Targets", targets(results), "## Figures", _NOTES]
    parts += [figures(results, found["data_bytes"], rows), "## Epochs", epochs(results)]
    parts += ["## What each delivers", deliveries(results)]
    failures = dict.fromkeys(f"- {each['name']}: {each['error']}" for each in results if "error" in each)
    if failures:
        parts += ["## Failed", "\n".join(failures)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def targets(results: Sequence[Result]) -> str:
    """Both targets. Ratios are of the same round: load that slows one turn also slows its neighbours."""
    own = {each["repeat"]: each for each in _measured(results).get(OURS, [])}
    peer = {each["repeat"]: each for each in _measured(results).get(PEER, [])}
    shares = [each["second"]["prepare_s"] / each["first"]["prepare_s"] for each in own.values()]
    faster = [
        _later_epochs(peer[repeat]["first"]) / _later_epochs(own[repeat]["first"])
        for repeat in sorted(own.keys() & peer.keys())
    ]
    return markdown_table(
        [
            ("figure", "target", "measured", ""),
            _target(
                "preparation in the second run, share of the first",
                f"<= {SECOND_SHARE:.0%}",
                shares,
                lambda value: value <= SECOND_SHARE,
                "{:.2%}",
            ),
            _target(
                f"epochs 2 and 3 of the first run: time of {PEER}, times Forebay's",
                f">= {EPOCH_RATIO:g}",
                faster,
                lambda value: value >= EPOCH_RATIO,
                "{:.1f}",
            ),
        ]
    )


def figures(results: Sequence[Result], data_bytes: int, rows: int) -> str:
    """One line per system and run."""
    head = ("system", "run", "wall time, s", "CPU time, s", "prepare, s", "source, times the data")
    lines = []
    for name, own in _measured(results).items():
        for run in ("first", "second"):
            runs = [result[run] for result in own]
            lines.append(
                (
                    name,
                    run,
                    spread([each["wall_s"] for each in runs], "{:.1f}"),
                    spread([each["cpu_s"] for each in runs], "{:.0f}"),
                    spread([each["prepare_s"] for each in runs], "{:.2f}"),
                    spread([each["sent_bytes"] / data_bytes for each in runs], "{:.2f}"),
                    spread([each["transformed"] / rows for each in runs], "{:.2f}"),
                    _integrity(runs),
                )
            )
    return markdown_table([(*head, "rows transformed, times the data", "rows lost / repeated"), *lines])


def epochs(results: Sequence[Result]) -> str:
    """Seconds of each epoch, and of them those waiting for data."""
    lines = []
    for name, own in _measured(results).items():
        for run in ("first", "second"):
            number = len(own[0][run]["epochs"])
            cells = [
                f"{spread([each[run]['epochs'][epoch]['seconds'] for each in own], '{:.2f}')}, waiting "
                f"{statistics.median(each[run]['epochs'][epoch]['wait_s'] for each in own):.2f}"
                for epoch in range(number)
            ]
            lines.append((name, run, *cells))
    count = max((len(line) - 2 for line in lines), default=0)
    return markdown_table([("system", "run", *(f"epoch {number + 1}, s" for number in range(count))), *lines])


def deliveries(results: Sequence[Result]) -> str:
    """Properties that each system states."""
    lines = []
    for name, own in _measured(results).items():
        facts = own[0]["first"]["facts"]
        lines.append((name, facts["version"], facts["keeps"], facts["shuffled"], facts["resumes"], facts["note"]))
    return markdown_table([("system", "version", "keeps", "shuffled", "after a crash, goes on", "note"), *lines])


def summary(result: Result) -> str:
    """One line on the console for one turn."""
    if "error" in result:
        return f"failed: {result['error'][:300]}"
    return "; ".join(
        f"{run}: {result[run]['wall_s']:.1f} s, prepare {result[run]['prepare_s']:.2f} s, epochs "
        f"{' '.join('{:.2f}'.format(each['seconds']) for each in result[run]['epochs'])} s, "
        f"{result[run]['sent_bytes'] / 1e6:.0f} MB sent, {result[run]['transformed']:,} rows transformed"
        for run in ("first", "second")
    )


def _later_epochs(run: Result) -> float:
    return sum(each["seconds"] for each in run["epochs"][1:])


def _measured(results: Sequence[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in results:
        if "error" not in result:
            found.setdefault(result["name"], []).append(result)
    return found


def _target(
    title: str, target: str, values: Sequence[float], is_met: Callable[[float], bool], form: str
) -> tuple[str, ...]:
    if not values:
        return title, target, "not measured", ""
    return title, target, spread(values, form), "met" if is_met(statistics.median(values)) else "**missed**"


def _integrity(runs: Iterable[Result]) -> str:
    found = [epoch for run in runs for epoch in run["epochs"]]
    lost, repeated = (sum(epoch[what] for epoch in found) for what in ("lost", "repeated"))
    return f"{lost} / {repeated} in {len(found)} epochs"
