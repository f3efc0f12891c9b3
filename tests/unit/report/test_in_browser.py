"""All kinds of pages in a real browser: no error, no request, no cut or overlapping text, on a phone and a screen."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.unit.doctor.conftest import measurements_of
from tests.unit.sweep.made import record, trial
from tests.unit.training.run_report.made import write_run
from tests.unit.training.run_report.test_report_page import SECTIONS

from forebay.doctor.diagnose import Diagnosis
from forebay.doctor.findings.bottleneck import verdict_of
from forebay.doctor.findings.gains import gains_of
from forebay.doctor.page import page_of
from forebay.llm.score.pool.counters import WorkerTotals
from forebay.llm.score.report import page_of as score_page_of
from forebay.llm.score.result import ScoreResult
from forebay.sweep.record.record import State
from forebay.sweep.report.page import page
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
    const covered = [...page.querySelectorAll("svg")].flatMap(svg => {
      const texts = [...svg.querySelectorAll("text")].map(each => [each.textContent, each.getBoundingClientRect()]);
      return texts.flatMap(([text, own], number) => texts.slice(number + 1).filter(([_, other]) =>
        Math.min(own.right, other.right) - Math.max(own.left, other.left) > 1 &&
        Math.min(own.bottom, other.bottom) - Math.max(own.top, other.top) > 3).map(([other]) => [text, other]));
    });
    found.push({ name, width, covered, cut: cut.map(each => each.textContent),
      scroll: root.scrollWidth - root.clientWidth,
      titles: [...page.querySelectorAll("h2")].map(each => each.textContent),
      drawn: [...page.querySelectorAll("svg")].filter(each => each.getBoundingClientRect().height > 60).length,
      requests: frame.contentWindow.performance.getEntriesByType("resource").length,
      columns: [page.querySelector(".pair")].map(
        each => each && getComputedStyle(each).gridTemplateColumns.split(" ").length)[0] });
    document.getElementById("found").textContent = JSON.stringify(found);
  };
  document.body.append(frame);
}
</script>"""


def sweep_page() -> str:
    """A sweep with an end of each kind, and a best trial with a long name."""
    states: list[State] = ["running", "paused", "stopped", "failed", "finished"]
    trials = [
        trial(
            f"d80a3_{number:05}",
            *(0.5 + (number * 7 % 12 + epoch) / 50 for epoch in range(1 + number % 4)),
            learning_rate_of_tables=10.0**-number,
            optimizer_of_tables=f"an-optimizer-of-a-long-name-{number % 3}",
        )
        for number in range(20)
    ]
    ended = [each.with_state(states[number % 5], 60.0) for number, each in enumerate(trials)]
    return page(record(*ended, name="ctr-of-a-long-name", metric="validation_auc", deadline_at_s=100.0))


def doctor_page() -> str:
    """Ways of a job on a GPU, with the longest reasons."""
    found = measurements_of(compute=1.18, copy=1.19, gather=1.2, transform=2.0, network=5.0, facts={"is_local": False})
    verdict = verdict_of(found)
    return page_of(Diagnosis(measurements=found, verdict=verdict, gains=tuple(gains_of(found, verdict))), "job.py")


def score_page() -> str:
    """Four workers and long names."""
    workers = tuple(
        WorkerTotals(name=f"w{number}", rows=10**5, errors=1, input_tokens=10**9, output_tokens=10**8, busy_s=3600.0)
        for number in range(4)
    )
    folder = "s3://lake/answers/2026-11-27/of-a-long-name"
    result = ScoreResult(folder=folder, rows=10**8, rows_before=3, workers=workers, workers_lost=1, seconds=3600.0)
    return score_page_of(result, {"model": "a/model-of-a-long-name"}, {"plan": "a" * 64, "engine": {"name": "hf"}})


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: apt-get install chromium)")
def test_pages_fit_every_width_and_ask_nothing_of_the_network(tmp_path: Path) -> None:
    run, killed = load_run(write_run(tmp_path)), load_run(write_run(tmp_path, "killed", is_killed=True))
    wide = load_run(write_run(tmp_path, "a-run-with-a-name-that-is-long-because-it-tells-everything", lr=0.003))
    pages = {"run": report_of([run]), "killed": report_of([killed]), "both": report_of([run, wide, killed])}
    pages |= {"sweep": sweep_page(), "doctor": doctor_page(), "score": score_page()}
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
    assert len(found) == 12
    fine = {"scroll": 0, "cut": [], "covered": [], "requests": 0}
    assert [each for each in found.values() if {name: each[name] for name in fine} != fine] == []
    assert all(found["run", width]["titles"] == SECTIONS for width in (480, 1200))
    assert found["run", 480]["drawn"] == found["run", 1200]["drawn"] == 6
    assert (found["run", 480]["columns"], found["run", 1200]["columns"]) == (1, 2)
