"""The picture of docs/scale.md shows what the tables of the page say."""

from __future__ import annotations

from pathlib import Path

from studies.scale_picture import draw, pairs

PAGE = Path(__file__).parents[3] / "docs/scale.md"


def test_the_page_keeps_what_it_says_of_its_models_and_can_be_drawn(tmp_path: Path) -> None:
    found = [*pairs(PAGE.read_text())]
    assert {nodes for nodes, _, _ in found} == {8, 16, 32} and len(found) == 3 * (2 * 8 + 5)
    assert all(abs(measured - model) <= 0.2 * model for _, measured, model in found)
    draw(PAGE.read_text(), tmp_path / "scale.png")
    assert (tmp_path / "scale.png").stat().st_size > 10_000
