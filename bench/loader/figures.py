"""Figures of the bench: ratios within one run, and whether they meet their targets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Results = Sequence[Mapping[str, Any]]

FOREBAY, ALL_CORES, NO_ROOM = "Forebay", "Forebay, all cores", "Forebay, no room in the cache"
GATHER = "limit: bare gather in memory"
ARROW, ARROW_ONE = "limit: pyarrow decode alone", "limit: pyarrow decode alone, one thread"
PETASTORM, PETASTORM_CACHED = "petastorm", "petastorm, disk cache"


def values(results: Results, name: str, kind: str, phase: str, what: str = "rows_per_s") -> dict[int, float]:
    """Measured values of one system in one phase, by repeat."""
    return {
        result["repeat"]: result["phases"][phase][what]
        for result in results
        if result["name"] == name and result.get("kind") == kind and phase in result.get("phases", {})
    }


def ratios(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """Ratios of the repeats that have both values. A load that slows one turn also slows its neighbours."""
    return [ours[repeat] / theirs[repeat] for repeat in sorted(ours.keys() & theirs.keys())]


def figures(results: Results, warm_s: Sequence[float]) -> list[dict[str, Any]]:
    """One entry per target and dataset: figure, target, measured (a median), unit, passed, note."""
    found = []
    for kind in dict.fromkeys(result["kind"] for result in results if "kind" in result):
        found += _ratio_figures(results, kind) + _waiting_figures(results, kind) + _count_figures(results, kind)
    seconds = _figure("time to first batch, warm start in a new process, 120 row groups", "<= 0.3", warm_s, "s")
    return [*found, seconds | {"note": "after imports; scan, plan, cache and first batch" + _range(warm_s, "s")}]


def _ratio_figures(results: Results, kind: str) -> list[dict[str, Any]]:
    def rate(name: str, phase: str) -> dict[int, float]:
        return values(results, name, kind, phase)

    lines = [
        (
            "cached epoch against petastorm's cached epoch",
            ">= 10",
            rate(FOREBAY, "later"),
            rate(PETASTORM_CACHED, "later"),
        ),
        ("cached epoch against a bare gather in memory", ">= 0.90", rate(FOREBAY, "later"), rate(GATHER, "later")),
        ("five cached epochs in a row, against the same", ">= 0.80", rate(FOREBAY, "several"), rate(GATHER, "several")),
        ("one epoch, nothing touched by either consumer", ">= 0.80", rate(FOREBAY, "count"), rate(GATHER, "count")),
        (
            "cold epoch with cache fill against petastorm without cache",
            ">= 3" if kind == "mixed" else ">= 2",
            rate(FOREBAY, "first"),
            rate(PETASTORM, "first"),
        ),
        (
            "cold epoch with cache fill against pyarrow's decoding alone, one decoding thread each",
            ">= 0.80",
            rate(FOREBAY, "first"),
            rate(ARROW_ONE, "first"),
        ),
        (
            "the same, as many decoding threads as cores, gather and trainer on the same ones",
            ">= 0.80",
            rate(ALL_CORES, "first"),
            rate(ARROW, "first"),
        ),
        (
            "five epochs in a row without room in the cache, against the cold epoch with cache fill",
            ">= 1",
            rate(NO_ROOM, "several"),
            rate(FOREBAY, "first"),
        ),
    ]
    return [_ratio(f"{kind}: {name}", target, ratios(ours, theirs)) for name, target, ours, theirs in lines]


def _ratio(name: str, target: str, found: Sequence[float]) -> dict[str, Any]:
    return _figure(name, target, found, "x") | {"note": _range(found, "x").lstrip("; ")}


def _waiting_figures(results: Results, kind: str) -> list[dict[str, Any]]:
    def share(phase: str, what: str) -> list[float]:
        return [100 * value for value in values(results, FOREBAY, kind, phase, what).values()]

    name = f"{kind}: share of time waiting, consumer of 2 ms steps"
    cached, whole, cold = share("step", "waiting_after_first"), share("step", "waiting"), share("cold step", "waiting")
    after = _figure(f"{name}, cached, after the first batch", "<= 1", cached, "%")
    after["note"] = _range(cached, "%").lstrip("; ")
    first = _figure(f"{name}, cached, whole epoch", "<= 1", whole, "%")
    first["note"] = "with the start of the epoch" + _range(whole, "%")
    return [after, first, _figure(f"{name}, cold", "report", cold, "%") | {"note": _range(cold, "%").lstrip("; ")}]


def _count_figures(results: Results, kind: str) -> list[dict[str, Any]]:
    """Figures that do not depend on the speed of the machine. All but page faults and switches hardly vary at all."""
    per_batch = "context switches of waiting threads, per batch"
    lines: list[tuple[str, str, str, str, Callable[[Mapping[str, Any]], float]]] = [
        ("cold epoch, bytes written for each byte of a batch", "<= 1.02", "x", "first", _written),
        ("cold epoch, bytes read for each byte of its columns in the files", "<= 1.05", "x", "first", _read),
        ("cached epoch, bytes read and written for each byte of a batch", "<= 0.01", "x", "later", _moved),
        ("cold epoch, system calls that read or write, per block", "report", "", "first", _calls),
        ("cold epoch, page faults per block", "report", "", "first", _faults),
        (f"cold epoch, {per_batch}", "report", "", "first", _waits),
        (f"cached epoch, {per_batch}", "report", "", "later", _waits),
    ]
    found = []
    for name, target, unit, phase, amount in lines:
        counted = [amount(epoch) for epoch in _counted(results, kind, phase)]
        found.append(_figure(f"{kind}: {name}", target, counted, unit) | {"note": _range(counted, unit).lstrip("; ")})
    return found


def _counted(results: Results, kind: str, phase: str) -> list[Mapping[str, Any]]:
    """Complete epochs of Forebay, on systems that count bytes."""
    epochs = [
        result["phases"][phase]
        for result in results
        if result["name"] == FOREBAY and result.get("kind") == kind and phase in result.get("phases", {})
    ]
    return [epoch for epoch in epochs if epoch["complete"] and "read_bytes" in epoch.get("counts", {})]


def _written(epoch: Mapping[str, Any]) -> float:
    return float(epoch["counts"]["written_bytes"] / epoch["bytes"])


def _read(epoch: Mapping[str, Any]) -> float:
    return float(epoch["counts"]["read_bytes"] / epoch["counters"]["source_bytes"])


def _moved(epoch: Mapping[str, Any]) -> float:
    return float((epoch["counts"]["read_bytes"] + epoch["counts"]["written_bytes"]) / epoch["bytes"])


def _calls(epoch: Mapping[str, Any]) -> float:
    return float((epoch["counts"]["read_calls"] + epoch["counts"]["write_calls"]) / epoch["counters"]["stores"])


def _faults(epoch: Mapping[str, Any]) -> float:
    return float((epoch["counts"]["minor_faults"] + epoch["counts"]["major_faults"]) / epoch["counters"]["stores"])


def _waits(epoch: Mapping[str, Any]) -> float:
    return float(epoch["counts"]["waits"] / epoch["batches"])


def _figure(name: str, target: str, found: Sequence[float], unit: str) -> dict[str, Any]:
    measured = statistics.median(found) if found else None
    passed = None if target == "report" else measured is not None and _meets(measured, target)
    return {
        "figure": name,
        "target": target,
        "measured": measured,
        "unit": unit,
        "passed": passed,
        "note": "not measured",
    }


def _meets(measured: float, target: str) -> bool:
    sign, number = target.split()
    compare: Callable[[float, float], bool] = float.__ge__ if sign == ">=" else float.__le__
    return compare(float(measured), float(number))


def _range(found: Sequence[float], unit: str) -> str:
    return f"; {min(found):.3g} to {max(found):.3g} {unit} in {len(found)} repeats" if found else "; not measured"
