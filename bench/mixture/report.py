"""Report of the mixture bench: distance from the shares, rows/s and resume of each system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.mixture.child import FOLLOWING, STATE_AT
from bench.mixture.setting import SPARE, WEIGHTS, WIDTH

_INTRODUCTION = """# Mixtures side by side

All figures below come from one run of `make bench-mixture`.
Every system mixes the same three datasets by the weights {weights}.
Rows are an id and {width} float32, in batches of {batch}.
An epoch has {rows:,} rows, and each dataset {spare:.0f} % more than its share of them.
Every loader may use {threads} threads or processes.
Each system's file in `bench/mixture/systems/` names the documentation of its configuration.

*Distance* is the largest difference between the number of rows of a dataset and its share, over all prefixes of \
the first epoch.
*Rows/s* is the first epoch from its second batch on, in which Forebay also decodes and fills its cache.
Other work on the machine slows all of them: compare times within the run, and by their order of magnitude.
*Resume* is a new process that goes on from a state that was saved after {state_at} batches of an epoch.
The figure is the share of its next {following} batches that have the rows of the run that was not stopped.

Machine: {cpu}, {cores} cores, {memory_gb:.0f} GB, {system}; load average before the run {load_before:.1f}.
The run took {minutes:.0f} minutes.
"""
_HEAD = """| system | version | distance, rows | rows/s | first batch | resume in epoch 1 | resume in epoch 2 |
|---|---|---|---|---|---|---|"""


def report(found: Mapping[str, Any]) -> str:
    """Text of mixture.md from the contents of mixture.json."""
    machine = found["machine"]
    facts = {"weights": ", ".join(f"{name} {share}" for name, share in WEIGHTS.items()), "width": WIDTH}
    facts |= {"state_at": STATE_AT, "following": FOLLOWING, "spare": 100 * (SPARE - 1)}
    facts |= {"memory_gb": machine["memory_bytes"] / 2**30, "minutes": found["took_s"] / 60}
    parts = [_INTRODUCTION.format(**machine, **found["options"], **facts).strip()]
    parts.append("\n".join([_HEAD, *(_row(result) for result in found["results"])]))
    errors = [
        f"- {result['name']}: {error}"
        for result in found["results"]
        for error in [result.get("error"), *(each["error"] for each in result.get("resumed", ()))]
        if error
    ]
    if errors:
        parts += ["## Failed", "\n".join(dict.fromkeys(errors))]
    return "\n\n".join(parts) + "\n"


def summary(result: Mapping[str, Any]) -> str:
    """One line of a result."""
    if "error" in result:
        return f"failed: {result['error']}"
    resumed = ", ".join(_resumed(each) for each in result["resumed"])
    return f"distance {result['distance']:.1f}, {result['rows_per_s']:,.0f} rows/s, resumed: {resumed}"


def _row(result: Mapping[str, Any]) -> str:
    if "error" in result:
        return f"| {result['name']} | - | failed | - | - | - | - |"
    cells = [
        result["name"],
        result["version"],
        f"{result['distance']:.1f}",
        f"{result['rows_per_s']:,.0f}",
        f"{result['first_batch_s']:.2f} s",
        *(_resumed(each) for each in result["resumed"]),
    ]
    return f"| {' | '.join(cells)} |"


def _resumed(each: Mapping[str, Any]) -> str:
    return "error" if each["equal"] is None else f"{each['equal']:.0%} equal"
