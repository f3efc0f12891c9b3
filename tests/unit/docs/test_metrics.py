"""The page on metrics lists every exported name, its unit and its meaning, and nothing else."""

from __future__ import annotations

from pathlib import Path

from forebay.fleet.status import FLEET_METRICS
from forebay.runtime.metrics import GAUGES, METRICS, TAGS, exported_name

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def rows(width: int) -> list[tuple[str, ...]]:
    """Cells of the table rows of this width, without headers and backticks."""
    lines = (line for line in PAGE.read_text().splitlines() if line.startswith("| `"))
    cells = (tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines)
    return [
        tuple(cell.strip("|` ") if at < 2 else cell.strip("| ") for at, cell in enumerate(row))
        for row in cells
        if len(row) == width
    ]


def unit(metric: str) -> str:
    return "seconds" if metric.endswith("_s") else "bytes" if metric.endswith("_bytes") else "count"


def test_every_metric_is_documented_as_it_is() -> None:
    meanings = METRICS | GAUGES
    assert rows(4) == [(name, exported_name(name), unit(name), meaning) for name, meaning in meanings.items()]


def test_every_label_is_documented() -> None:
    text = PAGE.read_text()
    for name, meaning in TAGS.items():
        assert f"| `{name}` | {meaning} |" in text
    assert len(rows(2)) == len(TAGS)


def test_every_metric_of_the_fleet_is_documented_as_it_is() -> None:
    assert rows(3) == [(f"forebay_{name}", kind, meaning) for name, (kind, meaning) in FLEET_METRICS.items()]
