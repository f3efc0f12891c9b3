"""Diagnosis as one HTML file with a picture."""

from __future__ import annotations

from markupsafe import Markup

from forebay.doctor.diagnose import Diagnosis
from forebay.doctor.findings.ways import MEANINGS
from forebay.doctor.text import IN_FIRST_EPOCH, next_step_of, notes_of, sentence_of, title_of, way_name, way_rows
from forebay.report.axes import FONT
from forebay.report.elements import element, joined, row, section, table, wide
from forebay.report.page import document, fragment
from forebay.report.picture import FAINT, INK, label
from forebay.runtime.formatting import count_text

_WIDTH, _BAR, _GAP, _LEFT, _RIGHT = 500, 24, 12, 84, 84
"""As wide as a telephone: a wider picture would be shown there with smaller letters."""


def page_of(diagnosis: Diagnosis, title: str) -> str:
    """Return the page's HTML."""
    found = diagnosis.measurements
    ways = [
        (way_name(way, found), f"{1e3 * step_s:.3g}", count_text(rate), f"{spread:.0%}", _prose(MEANINGS[way]))
        for way, step_s, rate, spread in way_rows(found)
    ]
    gains = [(gain.change, f"{gain.factor:.2f}x", _prose(gain.why)) for gain in diagnosis.gains]
    content = (
        section("Verdict", element("p", sentence_of(diagnosis)), element("p", element("b", next_step_of(diagnosis)))),
        section("Time of a step", picture_of(diagnosis)),
        section("Ways", table(("way", "ms a step", "rows/s", "spread", "batches"), map(row, ways), label="ways")),
        section(
            f"Changes, with the gain {IN_FIRST_EPOCH}",
            table(("change", "gain", "why"), map(row, gains), label="changes"),
        ),
        section("Notes", *(element("p", note) for note in notes_of(found))),
    )
    return document(title, fragment(title, *content))


def picture_of(diagnosis: Diagnosis) -> Markup:
    """Draw a bar for each way.

    The part that it adds to the way before it has the color of a bottleneck if it is one.
    """
    rows = list(way_rows(diagnosis.measurements))
    longest = max(step_s for _, step_s, _, _ in rows)
    scale, before, bars = (_WIDTH - _LEFT - _RIGHT) / longest, 0.0, []
    for number, (way, step_s, _, _) in enumerate(rows):
        top = number * (_BAR + _GAP)
        name = way_name(way, diagnosis.measurements)
        bars += _bar(
            name,
            top,
            widths=(before * scale, step_s * scale),
            is_bottleneck=way is diagnosis.verdict.bottleneck.way,
        )
        end = _LEFT + step_s * scale + 8
        bars.append(label(f"{1e3 * step_s:.3g} ms", end, top + _BAR * 0.7, "start", INK))
        before = step_s
    height = len(rows) * (_BAR + _GAP)
    told = element("title", f"Time of a step, {title_of(diagnosis.verdict.bottleneck.name, diagnosis.measurements)}")
    picture = element(
        "svg",
        told,
        *bars,
        viewBox=f"0 0 {_WIDTH} {height}",
        role="img",
        font_size=FONT,
        style="min-width: 360px; max-width: 620px",
    )
    return wide(picture, "time of a step by way")


def _bar(way: str, top: float, *, widths: tuple[float, float], is_bottleneck: bool) -> list[Markup]:
    before, now = widths
    color = "var(--series-1)" if is_bottleneck else "var(--series-0)"
    added = element("rect", x=_LEFT + before, y=top, width=max(now - before, 0.0), height=_BAR, fill=color)
    return [
        label(way, 0, top + _BAR * 0.7, "start", INK),
        element("rect", x=_LEFT, y=top, width=before, height=_BAR, fill=FAINT),
        joined([added]),
    ]


def _prose(text: str) -> Markup:
    """Cell of a table that breaks its lines."""
    return element("td", text, class_="text")
