"""The page of a run under way is read at most every few seconds, reloads until the run has ended, and shows errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.training.run_report.made import EVIL, write_run
from tests.waiting import SetClock

from forebay.report.server import CachedPage, LivePage
from forebay.training.run_report.live import live_page
from forebay.training.run_report.recorded_run import RECENT_S
from forebay.training.runs.timeline.timeline import FILE_NAME, load_timeline, save_timeline


@pytest.fixture
def counted() -> tuple[Callable[[], LivePage], list[int]]:
    made: list[int] = []

    def make() -> LivePage:
        made.append(len(made))
        return LivePage(text=str(len(made)), is_error=len(made) == 1)

    return make, made


def test_a_page_is_made_again_only_when_it_is_old(counted: tuple[Callable[[], LivePage], list[int]]) -> None:
    clock = SetClock()
    page = CachedPage(counted[0], every_s=5.0, clock=clock)
    shown = []
    for clock.now in (0.0, 4.9, 5.0, 9.9, 10.0, 60.0):
        shown.append(page().text)
    assert shown == ["1", "1", "2", "2", "3", "4"]  # an error is kept as long as any other page


def test_a_slow_storage_has_its_pause(counted: tuple[Callable[[], LivePage], list[int]]) -> None:
    clock = SetClock()

    def slow() -> LivePage:
        clock.now += 20.0
        return counted[0]()

    page = CachedPage(slow, every_s=5.0, clock=clock)
    assert [page().text, page().text, clock.now] == ["1", "1", 20.0]


def test_threads_that_ask_at_once_wait_for_one_page() -> None:
    asked, may_end = threading.Event(), threading.Event()
    made: list[LivePage] = []

    def make() -> LivePage:
        asked.set()
        assert may_end.wait(60)
        made.append(LivePage(text="page"))
        return made[-1]

    page, found = CachedPage(make, clock=SetClock()), list[LivePage]()
    threads = [threading.Thread(target=lambda: found.append(page())) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert asked.wait(60)
    may_end.set()
    for thread in threads:
        thread.join(60)
    assert len(made) == 1 and found == made * 4


@pytest.mark.parametrize(
    ("is_killed", "age_s", "state", "reloads"),
    [(True, 10.0, "under way", True), (True, RECENT_S + 1, "cut off", False), (False, 10.0, "finished", False)],
)
def test_a_page_reloads_until_the_run_has_ended_or_was_killed(
    tmp_path: Path, is_killed: bool, age_s: float, state: str, reloads: bool
) -> None:
    path = write_run(tmp_path, is_killed=is_killed)
    timeline = load_timeline(path)
    assert timeline is not None
    start = timeline.starts[0]
    save_timeline(replace(timeline, starts=(replace(start, saved_at=time.time() - age_s),)), path)
    page = live_page([path], reload_s=7.0)
    assert state in page.text and ("location.reload" in page.text, "7000" in page.text) == (reloads, reloads)
    both = live_page([path, write_run(tmp_path, "other")])
    assert "Side by side" in both.text and ("location.reload" in both.text) == reloads


def test_an_error_is_a_page_that_tries_again(tmp_path: Path) -> None:
    path = write_run(tmp_path / EVIL.replace("/", ""))
    Path(path, FILE_NAME).write_text('{"version": "<b>"}')
    page = live_page([path])
    assert page.is_error and "location.reload" in page.text and "Remove timeline.json" in page.text
    Path(path, FILE_NAME).unlink()
    Path(path, "result.json").unlink()
    page = live_page([path])
    assert page.is_error and "&lt;script&gt;alert(&#39;x" in page.text and EVIL[:15] not in page.text
