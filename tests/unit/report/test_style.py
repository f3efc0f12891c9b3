"""What a page writes and draws can be seen on every ground, light and dark: the contrasts of WCAG 2.2, level AA."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from forebay.report.style import DARK, LIGHT, NUM_SHADES

TEXT = ("ink", "quiet", "good", "bad", "warn", "series-1")
"""Colors of text, too."""


def luminance(color: str) -> float:
    shares = [int(color[begin : begin + 2], 16) / 255 for begin in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return sum(part * weight for part, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_curves_can_be_seen(colors: Mapping[str, str]) -> None:
    low = {
        (name, ground): found
        for name in TEXT
        for ground in ("paper", "ground", "mark")
        if (found := contrast(colors[name], colors[ground])) < 4.5
    }
    assert low == {}
    curves = [name for name in colors if name.startswith(("series-", "shade-"))]
    assert len(curves) == 5 + NUM_SHADES
    assert [name for name in curves if contrast(colors[name], colors["paper"]) < 3.0] == []


@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
def test_a_higher_shade_is_further_from_the_ground(colors: Mapping[str, str]) -> None:
    found = [contrast(colors[f"shade-{number}"], colors["paper"]) for number in range(NUM_SHADES)]
    assert found == sorted(found)
