"""The report in a real browser: no error, no request, no scrolling sideways on a narrow screen, light and dark."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.unit.training.run_report.made import write_run
from tests.unit.training.run_report.test_report_page import SECTIONS

from forebay.training.run_report.recorded_run import load_run
from forebay.training.run_report.report_page import report_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --window-size=480,1200 --enable-logging=stderr"
)
# Frames as wide as a telephone and a screen hold the page: a window of a browser has a least width. What a frame finds
# is written into the page that holds it, and read from its dump.
HARNESS = """<!DOCTYPE html><meta charset="utf-8"><pre id="found"></pre><script>
const found = [];
const pages = PAGES;
for (const [name, text] of Object.entries(pages)) for (const width of [480, 1200]) {
  const frame = document.createElement("iframe");
  frame.width = width; frame.height = 900; frame.srcdoc = text;
  frame.onload = () => {
    const page = frame.contentDocument, root = page.documentElement;
    const cut = [...page.querySelectorAll("svg text")].filter(each => {
      const own = each.getBoundingClientRect(), all = each.ownerSVGElement.getBoundingClientRect();
      return own.left < all.left - 1 || own.right > all.right + 1;
    });
    found.push({ name, width, scroll: root.scrollWidth - root.clientWidth, cut: cut.map(each => each.textContent),
      titles: [...page.querySelectorAll("h2")].map(each => each.textContent),
      drawn: [...page.querySelectorAll("svg")].filter(each => each.getBoundingClientRect().height > 60).length,
      requests: frame.contentWindow.performance.getEntriesByType("resource").length,
      columns: getComputedStyle(page.querySelector(".pair")).gridTemplateColumns.split(" ").length });
    document.getElementById("found").textContent = JSON.stringify(found);
  };
  document.body.append(frame);
}
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: apt-get install chromium)")
def test_reports_fit_every_width_and_ask_nothing_of_the_network(tmp_path: Path) -> None:
    run, killed = load_run(write_run(tmp_path)), load_run(write_run(tmp_path, "killed", is_killed=True))
    wide = load_run(write_run(tmp_path, "a-run-with-a-name-that-is-long-because-it-tells-everything", lr=0.003))
    pages = {"run": report_of([run]), "killed": report_of([killed]), "both": report_of([run, wide, killed])}
    harness = tmp_path / "harness.html"
    harness.write_text(HARNESS.replace("PAGES", json.dumps(pages).replace("</", "<\\/")))
    done = subprocess.run(
        [CHROMIUM or "", *OPTIONS.split(), f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", harness.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    shown = done.stdout.partition('<pre id="found">')[2].partition("</pre>")[0]
    found = {(each["name"], each["width"]): each for each in json.loads(shown)}
    assert len(found) == 6
    assert all((each["scroll"], each["cut"], each["requests"]) == (0, [], 0) for each in found.values()), found
    assert all(found["run", width]["titles"] == SECTIONS for width in (480, 1200))
    assert found["run", 480]["drawn"] == found["run", 1200]["drawn"] == 6
    assert (found["run", 480]["columns"], found["run", 1200]["columns"]) == (1, 2)
