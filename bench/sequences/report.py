"""Document of the sequence bench: targets first, then the results of every system by dataset."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.sequences.peers import (
    FOREBAY,
    FOREBAY_RAW,
    GATHER,
    GATHER_COLD,
    GATHER_RAW,
    GATHER_RAW_COLD,
    LARGE,
    MAPPED,
    MAPPED_SCALED,
    RATES,
    SMALL,
    SeriesSet,
)
from bench.sequences.setting import FUTURE, PAST, SERIES_STEPS
from bench.turns import markdown_table, spread

Result = Mapping[str, Any]

_INTRODUCTION = """# Windows over series, side by side

All figures of a dataset come from one run of `make bench-sequences`.
A window has {past} steps of the past and {future} of the future, of all columns, float32.
A series has {steps:,} steps, so 10,000 windows, and there are as many series as the number of windows needs.
Systems run one after the other, each in a process of its own, in {repeats} rounds (sets of 10^9 windows: one).
Figures are medians, with the range in brackets.
Batches of 256 windows go to one consumer that touches every byte, for {seconds:.0f} s after a warm-up of 2 s.
A `DataLoader` has 4 workers, each of which makes 10 batches ahead.
Each system's file in `bench/sequences/systems/` names the documentation of its configuration.
Files are in the page cache, so this measures loaders and not disks.

- *CPU* is of all processes of a system, with the consumer: unlike windows/s, it depends little on other load.
- *First batch* is the time from a new process, after its imports, to its first batch. Preparation is finished then.
- *Memory* is of all processes of a system, beyond the imports of one: no mapped files, and shared pages once.
- *Each worker* is what the largest worker process holds alone.
- *Prepared* is the work before: Forebay's first pass fills the cache, others convert files.

A process may have {memory_gb:.0f} GB of memory and {limit:.0f} s to its first batch.

Machine: {cpu}, {cores} cores, {memory:.0f} GB, {system}; load average before the run {load_before:.1f}.
The run took {minutes:.0f} minutes.

![windows per second, memory and time to first batch](sequences.png)
"""

_BARE_GATHER = """The bare gather writes into four buffers, 12 MB together, in the consumer's thread.
A CPU cache may hold them.
The batches of a loader pass between threads through a queue of up to 128 MB, which no CPU cache holds.
With 40 buffers, 120 MB together, the bare gather writes to memory as a full queue does: this has no target.
Forebay's memory grows with the number of runs, at most 100 bytes each, and not with the number of windows."""

_RATIOS = (
    ("windows/s against a memory map of scaled values + DataLoader", FOREBAY, MAPPED, 5.0),
    ("the same, bits as stored", FOREBAY_RAW, MAPPED, 8.0),
    ("the same, both scale each window", FOREBAY, MAPPED_SCALED, 3.0),
    ("windows/s against a bare gather of the same bytes", FOREBAY, GATHER, 0.8),
    ("the same, bits as stored", FOREBAY_RAW, GATHER_RAW, 0.8),
    ("the same, into 40 buffers", FOREBAY, GATHER_COLD, None),
    ("the same, into 40 buffers, bits as stored", FOREBAY_RAW, GATHER_RAW_COLD, None),
)
_MOST_GROWTH = 1.1


def report(found: Mapping[str, Any]) -> str:
    """Text of sequences.md from the contents of sequences.json."""
    machine, options, results = found["machine"], found["options"], found["results"]
    facts = machine | options | {"past": PAST, "future": FUTURE, "steps": SERIES_STEPS}
    facts |= {"memory": machine["memory_bytes"] / 2**30, "minutes": found["took_s"] / 60}
    parts = [_INTRODUCTION.format(**facts), "## Targets", targets(results), _BARE_GATHER]
    for name in dict.fromkeys(result["set"] for result in results if result["set"]):
        each = SeriesSet.parse(name)
        plural = "s" if each.columns > 1 else ""
        parts += [f"## {each.windows:,} windows of {each.columns} column{plural}", table(results, name)]
    if found["figures"]:
        parts += ["## Kernels and index alone", kernels(found["figures"])]
    parts += ["## What each delivers", deliveries(results)]
    failures = dict.fromkeys(
        f"- {result['name']}{', ' if result['set'] else ''}{result['set']}: {result['error']}"
        for result in results
        if "error" in result
    )
    if failures:
        parts += ["## Failed", "\n".join(failures)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def targets(results: Sequence[Result]) -> str:
    """Forebay against peers and limits. Ratios are of the same round: load that slows one slows its neighbours."""
    rows = []
    for title, ours, theirs, least in _RATIOS:
        ratios = ratios_of(results, ours, theirs, "windows_per_s")
        target = "report" if least is None else f">= {least:g}"
        if not ratios:
            rows.append((title, target, "not measured", "", ""))
            continue
        verdict = "" if least is None else "met" if statistics.median(ratios) >= least else "**missed**"
        cpu = ratios_of(results, theirs, ours, "cpu_us_per_window")
        rows.append((title, target, f"{spread(ratios, '{:,.2f}')} x", verdict, f"{spread(cpu, '{:,.2f}')} x"))
    small, large = (_values(results, FOREBAY, each.name, "used_bytes") for each in (SMALL, LARGE))
    title = f"memory with {LARGE.windows:,} windows against {SMALL.windows:,}"
    if small and large:
        growth = statistics.median(large.values()) / statistics.median(small.values())
        verdict = "met" if growth <= _MOST_GROWTH else "**missed**"
        rows.append((title, f"<= {_MOST_GROWTH:g}", f"{growth:.2f} x", verdict, ""))
    else:
        rows.append((title, f"<= {_MOST_GROWTH:g}", "not measured", "", ""))
    return markdown_table([("figure", "target", "measured", "", "by CPU time per window"), *rows])


def table(results: Sequence[Result], name: str) -> str:
    """One line per system on one dataset."""
    head = (
        "system",
        "windows/s",
        "GB/s",
        "CPU per window",
        "first batch",
        "memory",
        "each worker",
        "prepared",
    )
    rows = []
    for system, own in _by_name(results, name).items():
        measured = [result for result in own if "windows_per_s" in result]
        if not measured:
            rows.append((system, "failed: see below", *[""] * (len(head) - 2)))
            continue

        def figures(key: str, scale: float = 1.0, digits: int = 0, own: Sequence[Result] = measured) -> str:
            return spread([result[key] * scale for result in own], f"{{:,.{digits}f}}")

        rates = [result["windows_per_s"] * result["window_bytes"] / 1e9 for result in measured]
        workers = figures("worker_bytes", 1e-6) + " MB" if measured[0]["workers"] else "-"
        prepared = measured[0]["prepare_s"]
        rows.append(
            (
                system,
                figures("windows_per_s"),
                spread(rates, "{:,.2f}"),
                figures("cpu_us_per_window", 1, 1) + " us",
                figures("first_batch_s", 1, 2) + " s",
                figures("used_bytes", 1e-6) + " MB",
                workers,
                f"{prepared:,.0f} s" if prepared >= 0.1 else "-",
            )
        )
    return markdown_table([head, *rows])


def kernels(figures: Sequence[Mapping[str, Any]]) -> str:
    """Figures of `bench.own.windows` with their targets."""
    verdicts = {True: "met", False: "**missed**", None: ""}
    rows = [
        (
            each["figure"],
            str(each["target"]),
            "-" if each["measured"] is None else f"{each['measured']:.3g} {each['unit']}",
            verdicts[each["passed"]],
            each["note"],
        )
        for each in figures
    ]
    return markdown_table([("figure", "target", "measured", "", "note"), *rows])


def deliveries(results: Sequence[Result]) -> str:
    """Properties that each system states."""
    seen = {result["name"]: result["facts"] for result in results if "facts" in result}
    rows = [(name, facts["version"], facts["shuffled"], facts["note"]) for name, facts in seen.items()]
    return markdown_table([("system", "version", "shuffled", "note"), *rows])


def summary(result: Result) -> str:
    """One line on the console for one measurement."""
    if "error" in result:
        return f"failed: {result['error']}"
    return (
        f"{result['windows_per_s']:,.0f} windows/s, {result['cpu_us_per_window']:.1f} us of CPU each, first batch "
        f"after {result['first_batch_s']:.2f} s, {result['used_bytes'] / 1e6:.0f} MB, "
        f"{result['worker_bytes'] / 1e6:.0f} MB in each of {result['workers']} workers"
    )


def ratios_of(results: Sequence[Result], ours: str, theirs: str, key: str) -> list[float]:
    """Ratios of one figure on the dataset of the targets, by round."""
    left, right = (_values(results, name, RATES.name, key) for name in (ours, theirs))
    return [left[repeat] / right[repeat] for repeat in sorted(left.keys() & right.keys())]


def _values(results: Sequence[Result], name: str, series_set: str, key: str) -> dict[int, float]:
    return {
        result["repeat"]: result[key]
        for result in results
        if (result["name"], result["set"]) == (name, series_set) and key in result
    }


def _by_name(results: Sequence[Result], series_set: str) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in results:
        if result["set"] == series_set:
            found.setdefault(result["name"], []).append(result)
    return found
