"""The results of a run, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.soak.case import FAULTS, TERMS
from tests.soak.slots import CaseResult

BEGIN, END = "<!-- soak: begin -->", "<!-- soak: end -->"
KINDS = ("equal", "error", "skipped", "failed")


@dataclass(frozen=True)
class SoakRun:
    """All results of one seed."""

    seed: int
    seconds: float
    results: list[CaseResult]

    @property
    def failed(self) -> list[CaseResult]:
        return [result for result in self.results if result.kind == "failed"]

    def text(self) -> str:
        """Text for the terminal: the table, then the command that repeats each failed case."""
        lines = [f"{'fault':28} {'cases':>6} {'equal':>6} {'error':>6} {'skipped':>8} {'failed':>6} {'seconds':>8}"]
        for name, counts, seconds in self._rows():
            cells = (counts.total(), *(counts[kind] for kind in KINDS))
            lines.append("{:28} {:6} {:6} {:6} {:8} {:6} {:8.1f}".format(name, *cells, seconds))
        lines.append(self.summary())
        for driver, total in struck_by(driver_of, self.results).most_common():
            lines.append(f"{driver}: {total} faults")
            mine = [replace(result, faults=_only(driver, result.faults)) for result in self.results]
            mine = [result for result in mine if result.faults]
            parts = [struck_by(kind_of, mine), struck_by(moment_of, mine)] if mine else []
            lines += ["  " + ", ".join(f"{part} {count}" for part, count in each.most_common()) for each in parts]
        lines += [f"FAILED  {result.case.replay}" for result in self.failed]
        return "\n".join(lines)

    def summary(self) -> str:
        counts = Counter(result.kind for result in self.results)
        parts = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)
        size = f"{len(self.results)} cases with {self.faults().total()} faults, seed {self.seed}"
        return f"{size}, in {self.seconds / 60:.1f} minutes: {parts}."

    def faults(self) -> Counter[str]:
        """Faults that were struck, by kind."""
        return struck_by(str, self.results)

    def markdown(self) -> str:
        """Table of the faults with another outcome than `equal`, and one line of all others."""
        lines = ["| fault | expected | cases | equal | error | skipped | failed |", "|---|---|" + "---:|" * 5]
        equal = []
        for name, counts, _ in self._rows():
            if counts["equal"] == counts.total():
                equal.append(f"{name} {counts.total()}")
            else:
                numbers = " | ".join(str(counts[kind]) for kind in KINDS)
                lines.append(f"| {name} | {TERMS[name].expected} | {counts.total()} | {numbers} |")
        reasons = {result.detail for result in self.results if result.kind == "skipped"}
        skipped = (f"\nSkipped: {reason}" for reason in sorted(reasons))
        return "\n".join([self.summary(), "", *lines, "", f"All cases equal: {', '.join(equal) or 'none'}.", *skipped])

    def _rows(self) -> list[tuple[str, Counter[str], float]]:
        rows = []
        for name in FAULTS:
            mine = [result for result in self.results if result.fault == name]
            if mine:
                kinds = Counter(result.kind for result in mine)
                rows.append((name, kinds, sum(result.seconds for result in mine)))
        return rows


def struck_by(part: Callable[[str], str], results: Sequence[CaseResult]) -> Counter[str]:
    """Faults that were struck, by a part of their names. A case that does not count its own has one."""
    struck = Counter[str]()
    for result in results:
        if result.kind != "skipped":
            for name, count in (result.faults or {result.fault: 1}).items():
                struck[part(name)] += count
    return struck


def driver_of(name: str) -> str:
    """`ray` of `ray: kill worker / a commit / several at once`."""
    return name.partition(": ")[0] if ": " in name else "single faults"


def kind_of(name: str) -> str:
    """`kill worker` of `ray: kill worker / a commit / several at once`."""
    return name.partition(": ")[2].partition(" / ")[0]


def moment_of(name: str) -> str:
    """`a commit, several at once` of `ray: kill worker / a commit / several at once`."""
    return name.partition(" / ")[2].replace(" / ", ", ") or "any moment"


def _only(driver: str, faults: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in faults.items() if driver_of(name) == driver}


def write_table(path: Path, run: SoakRun) -> None:
    """Replace the text between the markers in `path`."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    assert after, f"{path} has no lines {BEGIN} and {END}"
    path.write_text(f"{before}{BEGIN}\n{run.markdown()}\n{END}{after}")
