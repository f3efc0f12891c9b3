"""Document of the bench: targets first, then the results of every system."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Results = Sequence[Mapping[str, Any]]

_INTRODUCTION = """# Loaders side by side

All figures below come from one run of `make bench`.
Systems run one after the other, each in a process of its own, in {repeats} rounds.
Figures are medians, with the range in brackets.
Each system's file in `bench/loader/systems/` names the documentation of its configuration.
Every loader may use {threads} threads or processes to read.
Batches of 8192 rows go to one consumer that touches every byte.
Sources are in the page cache, so this measures loaders and not disks.

Machine: {cpu}, {cores} cores, {memory_gb:.0f} GB, {system}; load average before the run {load_before:.1f}.
Each dataset has {rows:,} rows in 64 row groups.
An epoch that took longer than {limit_s:.0f} s was stopped there and is marked with `>`.
For systems that start processes in each epoch, such a rate mostly shows the time of these starts.
The run took {minutes:.0f} minutes.

![rows per second](loader.png)
"""

_SETS = {
    "dense": "100 float32 columns and a label (404 bytes per row)",
    "mixed": "13 floats, 26 int64 ids, a ragged list of up to 32 ids, a string, a label (532 bytes per row, packed)",
}

_COUNTS = """Counts of the kernel. Speed and load of the machine do not change bytes. Page faults vary by a fifth.
Waits are context switches of threads that waited, and follow the load.
Bytes are counted at system calls, so a read of the page cache counts and a mapped file does not.
Processes that a system stops within an epoch are left out."""


def report(found: Mapping[str, Any]) -> str:
    """Text of loader.md from the contents of loader.json."""
    machine, options, results = found["machine"], found["options"], found["results"]
    facts = machine | options | {"memory_gb": machine["memory_bytes"] / 2**30, "minutes": found["took_s"] / 60}
    parts = [_INTRODUCTION.format(**facts), "## Targets", targets(found["figures"])]
    for kind in dict.fromkeys(result["kind"] for result in results if "kind" in result):
        parts += [f"## {kind}: {_SETS[kind]}", speeds(results, kind), _COUNTS, counts(results, kind)]
        if found["options"]["repeats"] and _lost(results, kind):
            parts.append("Rows lost or repeated in complete epochs: " + _lost(results, kind))
    parts += ["## What each delivers", deliveries(results), _failures(results)]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def targets(figures: Iterable[Mapping[str, Any]]) -> str:
    """Table of all figures with their targets, and whether they were met."""
    rows = [
        (
            figure["figure"],
            str(figure["target"]),
            "-" if figure["measured"] is None else f"{_number(figure['measured'])} {figure['unit']}".strip(),
            _verdict(figure),
            figure["note"],
        )
        for figure in figures
    ]
    return _table(("figure", "target", "measured", "", "note"), rows)


def speeds(results: Results, kind: str) -> str:
    """Table of rows/s in the first and in later epochs, waiting, first batch and memory, one row per system."""
    rows = []
    for name, own in _by_name(results, kind).items():
        rows.append(
            (
                name,
                _rate(own, "first"),
                _rate(own, "later"),
                _middle(own, "step", "waiting_after_first", 100, " %"),
                _middle(own, "later", "first_batch_s", 1000, " ms"),
                _middle(own, "later" if _has(own, "later") else "first", "all_peak_rss_bytes", 2**-20, " MB"),
                _integrity(own),
            )
        )
    heads = (
        "system",
        "first epoch, rows/s",
        "later epoch, rows/s",
        "waiting, 2 ms steps",
        "first batch",
        "peak memory",
    )
    return _table((*heads, "rows lost / repeated"), rows)


def counts(results: Results, kind: str) -> str:
    """Table of bytes, page faults and context switches of the first and of a later epoch, one row per system."""
    heads, rows = ["system"], []
    for epoch in ("first", "later"):
        heads += [f"{epoch} epoch: read per row", "written per row", "page faults per 1,000 rows", "waits per batch"]
    for name, own in _by_name(results, kind).items():
        cells = [name]
        for phase in ("first", "later"):
            cells += [_per(own, phase, count, "rows", 1, " B") for count in ("read_bytes", "written_bytes")]
            cells += [_per(own, phase, "minor_faults", "rows", 1000), _per(own, phase, "waits", "batches", 1)]
        rows.append(cells)
    return _table(heads, rows)


def deliveries(results: Results) -> str:
    """Table of the properties that each system states, and of the measured order: repeatable or not, and
    how shuffled.
    """
    rows = []
    for name, own in _by_name(results, None).items():
        facts = next(result["facts"] for result in own if "facts" in result)
        prepared = max(result["prepare_s"] for result in own)
        note = f"{facts['note']} ({prepared:.0f} s)" if "converted" in facts["note"] else facts["note"]
        seen = f"{_orders(own)}; {_contents(own, results)}"
        rows.append((name, facts["version"], facts["shuffled"], facts["packed"], facts["deterministic"], seen, note))
    return _table(("system", "version", "shuffled", "packed", "deterministic", "seen here", "note"), rows)


def _verdict(figure: Mapping[str, Any]) -> str:
    if figure["measured"] is None:
        return "not measured"
    return {True: "met", False: "**missed**", None: "reported"}[figure["passed"]]


def _orders(own: Results) -> str:
    """Comparison of the order of complete epochs between repeats."""
    seen: dict[tuple[str, str], set[str]] = {}
    neighbours = []
    for result in own:
        for phase in ("first", "later"):
            account = result["phases"].get(phase)
            if account and account["complete"]:
                seen.setdefault((result["kind"], phase), set()).add(account["order"])
                neighbours.append(account["neighbours"])
    rounds = max((result["repeat"] for result in own), default=0) + 1
    if not seen:
        return "no epoch completed"
    orders = "one order" if max(map(len, seen.values())) == 1 else f"{max(map(len, seen.values()))} orders"
    return f"{orders} in {rounds} rounds; {statistics.median(neighbours):.0%} of rows follow their neighbour"


def _contents(own: Results, results: Results) -> str:
    """Comparison of the sums of all bytes with the system that reads the source first (`consumer.touch`)."""
    verdicts = set()
    for result in own:
        wanted = next((_sums([o]) for o in results if o.get("kind") == result["kind"] and _sums([o])), [None])
        verdicts |= {sums == wanted[0] for sums in _sums([result])}
    return {frozenset(): "nothing compared", frozenset({True}): "the same bytes as the others"}.get(
        frozenset(verdicts), "OTHER BYTES than the others"
    )


def _sums(results: Results) -> list[dict[str, int]]:
    """Sums of arrays whose rows take a multiple of 8 bytes, in complete epochs that lost and repeated nothing."""
    accounts = [account for result in results for account in result.get("phases", {}).values()]
    whole = [a for a in accounts if a["complete"] and not a["lost"] and not a["repeated"]]
    found = [{name: a["sums"][name] for name in ("x", "ids", "tags", "city") if name in a["sums"]} for a in whole]
    return [sums for sums in found if sums]


def _integrity(own: Results) -> str:
    accounts = [account for result in own for account in result["phases"].values()]
    complete = [account for account in accounts if account["complete"]]
    lost, repeated = sum(a["lost"] for a in complete), sum(a["repeated"] for a in accounts)
    return f"{lost} / {repeated} in {len(complete)} epochs" if complete else f"? / {repeated}, none complete"


def _lost(results: Results, kind: str) -> str:
    bad = [name for name, own in _by_name(results, kind).items() if not _integrity(own).startswith(("0 / 0", "? / 0"))]
    return ", ".join(bad)


def _failures(results: Results) -> str:
    failed = [result for result in results if "error" in result]
    reasons = {f"{result['name']} ({result.get('kind', 'install')})": result["error"] for result in failed}
    lines = [f"- {name}: {reason}" for name, reason in reasons.items()]
    return "\n".join(["## Failed", "", *lines]) if lines else ""


def _by_name(results: Results, kind: str | None) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        if "phases" in result and kind in (None, result["kind"]):
            found.setdefault(result["name"], []).append(result)
    return found


def _accounts(own: Results, phase: str) -> list[Mapping[str, Any]]:
    return [result["phases"][phase] for result in own if phase in result["phases"]]


def _has(own: Results, phase: str) -> bool:
    return bool(_accounts(own, phase))


def _rate(own: Results, phase: str) -> str:
    accounts = _accounts(own, phase)
    if not accounts:
        return "-"
    rates = [account["rows_per_s"] for account in accounts]
    stopped = "" if all(account["complete"] for account in accounts) else "> "
    return f"{stopped}{statistics.median(rates):,.0f} ({min(rates):,.0f}-{max(rates):,.0f})"


def _middle(own: Results, phase: str, what: str, scale: float, unit: str) -> str:
    found = [account[what] * scale for account in _accounts(own, phase)]
    return f"{_number(statistics.median(found))}{unit}" if found else "-"


def _per(own: Results, phase: str, count: str, what: str, scale: float, unit: str = "") -> str:
    found = [
        scale * account["counts"][count] / account[what]
        for account in _accounts(own, phase)
        if count in account.get("counts", {}) and account[what]
    ]
    return f"{_number(statistics.median(found))}{unit}" if found else "-"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [[cell.replace("|", "/").replace("\n", " ") for cell in row] for row in rows]
    lines = [list(heads), ["---"] * len(heads), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
