"""A picture follows the colors of a page, and stands alone in a file and in a notebook."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from forebay.errors import InvalidOption, WriteFailed
from forebay.report.axes import PlotAxis
from forebay.report.curves import Curve, Plot, curves
from forebay.report.picture import INK, Picture, PlotArea, dots, label, turned

AREA = PlotArea(PlotAxis(0.0, 10.0, 50, 150), PlotAxis(0.0, 1.0, 100, 0))


def picture() -> Picture:
    grid = AREA.grid("steps")
    content = (*grid, label("a < b", 5, 5, color=INK), turned("loss", 4, 50), dots([(60.0, 90.0)], INK, ["0.1 & more"]))
    return Picture(title="the <title>", width=200, height=140, content=content)


def test_a_picture_follows_the_colors_of_the_page() -> None:
    shown = picture().in_page()
    assert "<title>the &lt;title&gt;</title>" in shown and "a &lt; b" in shown and "0.1 &amp; more" in shown
    assert 'fill="var(--ink)"' in shown and "#" not in shown
    assert not re.search(r"<style|<script| id=", shown)


def test_a_saved_picture_stands_alone(tmp_path: Path) -> None:
    path = picture().save(tmp_path / "a.svg")
    text = Path(path).read_text()
    assert path == str(tmp_path / "a.svg") and text == picture()._repr_svg_()
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and root.attrib["width"] == "200"
    assert "var(" not in text and "#22313f" in text and "#ffffff" in text


def test_a_picture_is_saved_as_svg_only(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"a\.png': a picture is saved as SVG\. Give a path that ends in \.svg"):
        picture().save(tmp_path / "a.png")
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteFailed, match="The picture 'the <title>' could not be written to"):
        picture().save(tmp_path / "file" / "a.svg")


def test_axes_have_round_ticks_and_whole_ones_on_request() -> None:
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", "".join(AREA.grid("steps")))
    assert texts == ["0", "0.5", "1", "0", "10", "steps"]
    assert "0.5" not in "".join(AREA.grid("steps", "count {:g}".format, whole_y=True)).replace("4.5", "")


def test_a_path_goes_through_its_points() -> None:
    assert AREA.path([(0, 0), (10, 1)]) == "M50.0 100.0l100 -100"
    assert AREA.path([(0, 0), (10, 1)], steps=True) == "M50.0 100.0h100v-100"


def test_a_logarithmic_axis() -> None:
    axis = PlotAxis(0.01, 100.0, 0, 4, is_log=True)
    assert [axis(value) for value in (0.001, 0.1, 1.0, 1000.0)] == pytest.approx([0, 1, 2, 4])
    assert axis.ticks(5) == pytest.approx([0.01, 0.1, 1.0, 10.0, 100.0])
    assert PlotAxis(16.0, 64.0, 0, 1, is_log=True).ticks(5) == [20.0, 50.0]
    assert PlotAxis(22.0, 29.0, 0, 1, is_log=True).ticks(5) == [22.0, 24.0, 26.0, 28.0]


@pytest.mark.parametrize("extreme", [5e-324, 1e-310, 1e-200, 1e200, 1.7e308, -1.7e308, float("inf"), float("nan")])
@pytest.mark.parametrize("options", [{}, {"log_y": True}, {"zero": True}])
def test_a_value_that_no_axis_can_show_is_left_out(extreme: float, options: Any) -> None:
    def drawn(*values: float) -> str:
        points = list(enumerate(values, 1))
        return curves(Plot(title="loss", x_label="step", curves=[Curve(label="loss", points=points)], **options))

    assert drawn(1.0, 2.0, 1.5, extreme).count("<circle") == 3
    assert "<circle" not in drawn(extreme)


def test_values_below_zero_are_drawn_from_zero() -> None:
    assert "NaN" not in curves(
        Plot(title="rate", x_label="step", curves=[Curve(label="rate", points=[(1, -2.0), (2, -1.0)])], zero=True)
    )
