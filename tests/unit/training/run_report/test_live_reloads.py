"""A browser follows a run that grows and ends: it reloads, keeps its place, and stops when the run has ended."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.report.test_in_browser import CHROMIUM, OPTIONS
from tests.unit.report.test_server import serving
from tests.unit.training.run_report.made import EPOCHS, write_run

from forebay.report.server import LivePage
from forebay.training.run_report.live import live_page
from forebay.training.runs.result import load_result, save_result
from forebay.training.runs.timeline.timeline import RunStart, Timeline, load_timeline, save_timeline

# Scrolls the first page, and writes into each one where it stands.
PROBE = """<script>
const root = document.scrollingElement, table = document.querySelector("[aria-label=Epochs]");
if (performance.getEntriesByType("navigation")[0].type === "navigate") {
  root.scrollTo(0, 500);
  table.scrollTo(40, 0);
}
document.body.dataset.place = [root.scrollTop, table.scrollLeft];
</script></html>"""


def part(start: RunStart, end_s: float) -> RunStart:
    """`start` as it was recorded `end_s` seconds after it began, a moment ago."""
    return replace(
        start,
        at=time.time() - end_s,
        saved_at=time.time(),
        events=tuple(event for event in start.events if event.at_s <= end_s),
        progress=tuple(point for point in start.progress if point.at_s <= end_s),
        last_s=end_s,
        how=start.how if end_s >= start.last_s else "",
    )


def growing(path: str) -> Iterator[LivePage]:
    """Pages of a run that is recorded after each epoch. The second page is an error."""
    whole, result = load_timeline(path), load_result(path)
    assert whole is not None and result is not None
    start = whole.starts[0]
    for epochs in range(1, EPOCHS + 1):
        save_result(replace(result, epochs=result.epochs[:epochs]))
        save_timeline(Timeline(starts=(part(start, epochs / EPOCHS * start.last_s),)), path)
        page = live_page([path], reload_s=0.2)
        yield replace(page, text=page.text.replace("</html>", PROBE))
        if epochs == 1:
            yield live_page([f"{path}-of-another-name"], reload_s=0.2)
    raise AssertionError("the page of a run that has ended was loaded again")


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: apt-get install chromium)")
def test_a_page_follows_its_run_to_the_end_and_keeps_its_place(tmp_path: Path) -> None:
    shown: list[LivePage] = []
    pages = growing(write_run(tmp_path))

    def page() -> LivePage:
        shown.append(next(pages))
        return shown[-1]

    with serving(page) as server:
        done = subprocess.run(
            [
                *(CHROMIUM or "", *OPTIONS.split(), f"--user-data-dir={tmp_path / 'profile'}"),
                *("--virtual-time-budget=5000", "--dump-dom", server.url),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    assert "CONSOLE" not in done.stderr, done.stderr
    states = [re.findall(r'<p class="quiet">([a-z ]+),', each.text) for each in shown]
    assert states == [["under way"], [], ["under way"], ["finished"]]
    assert "finished" in done.stdout
    assert re.findall(r'data-place="(.*?)"', done.stdout) == ["500,40"]
