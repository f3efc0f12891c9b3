"""The results of a run, as a table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
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
        lines += [f"{self.summary()}", *(f"FAILED  {result.case.replay}" for result in self.failed)]
        return "\n".join(lines)

    def summary(self) -> str:
        counts = Counter(result.kind for result in self.results)
        parts = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)
        return f"{len(self.results)} cases with seed {self.seed} in {self.seconds / 60:.1f} minutes: {parts}."

    def markdown(self) -> str:
        lines = ["| fault | expected | cases | equal | error | skipped | failed | seconds |", "|---|---|" + "---:|" * 6]
        for name, counts, seconds in self._rows():
            numbers = " | ".join(str(counts[kind]) for kind in KINDS)
            lines.append(f"| {name} | {TERMS[name].expected} | {counts.total()} | {numbers} | {seconds:.0f} |")
        reasons = {result.detail for result in self.results if result.kind == "skipped"}
        return "\n".join([self.summary(), "", *lines, *(f"\nSkipped: {reason}" for reason in sorted(reasons))])

    def _rows(self) -> list[tuple[str, Counter[str], float]]:
        rows = []
        for name in FAULTS:
            mine = [result for result in self.results if result.fault == name]
            if mine:
                kinds = Counter(result.kind for result in mine)
                rows.append((name, kinds, sum(result.seconds for result in mine)))
        return rows


def write_table(path: Path, run: SoakRun) -> None:
    """Replace the text between the markers in `path`."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    assert after, f"{path} has no lines {BEGIN} and {END}"
    path.write_text(f"{before}{BEGIN}\n{run.markdown()}\n{END}{after}")
