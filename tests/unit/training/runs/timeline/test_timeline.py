"""The timeline holds what happened when, and what each change of the world cost, in a file of bounded size."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from tests.waiting import SetClock

from forebay.errors import InvalidOption
from forebay.events import EpochEnded, Event, Failed, Finished, Reported, Resized, Started, Warned
from forebay.training.run_report.recorded_run import RECENT_S, RecordedRun
from forebay.training.runs.timeline.recorder import MAX_EVENTS, MAX_PROGRESS, TimelineRecorder
from forebay.training.runs.timeline.timeline import (
    FILE_NAME,
    MAX_STARTS,
    RunStart,
    StartOrigin,
    TimedEvent,
    Timeline,
    load_timeline,
    save_timeline,
)

ORIGIN = StartOrigin(config={"lr": 0.1, "bad": float("inf")}, code={"sha256": "12ab"}, packages={"torch": "2.13"})
START = RunStart(at=1000.0, attempt=1, origin=StartOrigin())


def started(world_size: int) -> Started:
    return Started(name="a", world_size=world_size, epochs=2, num_batches=10)


def reported(step: int) -> Reported:
    return Reported(step=step, epoch=0, position=0, metrics={"loss": 1.0}, rows=8 * step, global_batch=8)


def recorded(path: Path, *timed: tuple[float, Event], earlier: Timeline | None = None) -> Timeline:
    clock = SetClock()
    recorder = TimelineRecorder(str(path), START, earlier, clock)
    for clock.now, event in timed:
        recorder.record(event)
    recorder.save()
    found = load_timeline(str(path))
    assert found is not None
    return found


def test_a_suspended_machine_has_a_run_under_way_again(tmp_path: Path) -> None:
    """Its clock of seconds stood still for an hour, or its time was corrected by as much."""
    clock = SetClock()
    recorder = TimelineRecorder(str(tmp_path), START, None, clock, lambda: START.at + 3600.0 + clock.now)
    clock.now = 60.0
    recorder.save()
    timeline = load_timeline(str(tmp_path))
    assert timeline is not None

    def state(read_at: float) -> str:
        return RecordedRun(name="a", path=str(tmp_path), timeline=timeline, read_at=read_at).state

    assert state(START.at + 3600.0 + 70.0) == "under way"
    assert state(START.at + 3600.0 + 60.0 + RECENT_S) == "cut off"
    (start,) = timeline.starts
    timeline = replace(timeline, starts=(replace(start, saved_at=0.0),))
    assert state(START.at + 70.0) == "under way", "of an earlier release"


def test_a_change_of_the_world_says_what_it_cost(tmp_path: Path) -> None:
    (start,) = recorded(
        tmp_path,
        (1.0, started(2)),
        (3.5, reported(1)),
        (4.0, reported(2)),
        (4.1, Resized(old=2, new=4, step=2)),
        (4.1, started(4)),
        (6.0, reported(3)),
        (7.0, reported(9)),
        (8.0, Failed(error="a worker died", failures=1, will_retry=True)),
        (9.0, started(4)),
        (11.0, reported(6)),
        (12.0, Finished(name="a", path="p")),
    ).starts
    starts = [event.facts for event in start.events if event.kind == "Started"]
    assert [(each["gap_s"], each["repeated_steps"]) for each in starts] == [(3.5, 0), (2.0, 0), (4.0, 4)]
    assert [(point.at_s, point.step, point.world_size) for point in start.progress] == [
        (3.5, 1, 2),
        (4.0, 2, 2),
        (6.0, 3, 4),
        (7.0, 9, 4),
        (11.0, 6, 4),
    ]
    assert start.how == "finished" and start.events[-1] == TimedEvent(
        at_s=12.0, kind="Finished", facts={"stopped": None}
    )


def test_a_start_that_continues_after_a_kill_repeats_the_steps_since_the_checkpoint(tmp_path: Path) -> None:
    killed = recorded(tmp_path, (1.0, started(1)), (2.0, reported(50)))
    assert killed.starts[0].how == ""
    both = recorded(tmp_path, (1.0, started(1)), (2.0, reported(41)), earlier=killed)
    assert both.starts[0] == killed.starts[0] and both.starts[1].events[0].facts["repeated_steps"] == 10


def test_the_file_stays_small_and_the_curve_keeps_its_shape(tmp_path: Path) -> None:
    steps = [(number / 10, reported(number)) for number in range(1, 20_000)]
    warned = [(2000.0, Warned(reason="large", step=number)) for number in range(2 * MAX_EVENTS)]
    found = recorded(tmp_path, (0.0, started(1)), *steps, *warned, (2001.0, Finished(name="a", path="p")))
    (start,) = found.starts
    times = [point.at_s for point in start.progress]
    assert len(times) <= MAX_PROGRESS + 1 and start.progress[-1].step == 19_999
    widest = max(later - sooner for sooner, later in pairwise(times))
    assert widest < 4 * times[-1] / len(times)
    assert start.omitted == MAX_EVENTS + 1 and start.events[-1].kind == "Finished"
    assert (tmp_path / FILE_NAME).stat().st_size < 120_000


def test_the_newest_starts_are_kept(tmp_path: Path) -> None:
    timeline = Timeline()
    for number in range(MAX_STARTS + 3):
        timeline = timeline.with_start(RunStart(at=float(number), attempt=number, origin=ORIGIN))
    assert (len(timeline.starts), timeline.omitted, timeline.starts[0].at) == (MAX_STARTS, 3, 3.0)
    save_timeline(timeline, str(tmp_path))
    assert load_timeline(str(tmp_path / "other")) is None
    loaded = load_timeline(str(tmp_path))
    assert loaded is not None and loaded.starts[0].origin.packages == {"torch": "2.13"}


@pytest.mark.parametrize("text", ['{"version": 99, "starts": []}', '{"version": 1', '{"version": 1, "starts": [{}]}'])
def test_another_version_or_a_cut_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(InvalidOption, match=r"timeline\.json of a Forebay run of version 1"):
        load_timeline(str(tmp_path))


def test_storage_that_refuses_ends_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    recorder = TimelineRecorder(str(tmp_path / "file" / "run"), START, None)
    ended = EpochEnded(epoch=0, step=1, metrics={}, rows=1, seconds=1.0, wait_s=0.0, eval_s=0.0, checkpoint_s=0.0)
    recorder.record(ended)
    recorder.save()
    assert "could not be saved" in caplog.text
    assert recorder.timeline.starts[0].events[0].facts == {"epoch": 0, "step": 1}


def test_events_do_not_wait_for_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_asked, answers = threading.Event(), threading.Event()

    def answer_late(timeline: Timeline, path: str) -> None:
        is_asked.set()
        assert answers.wait(30.0)
        save_timeline(timeline, path)

    monkeypatch.setattr("forebay.training.runs.timeline.recorder.save_timeline", answer_late)
    recorder = TimelineRecorder(str(tmp_path), START, None)
    saving = threading.Thread(target=recorder.save)
    saving.start()
    assert is_asked.wait(30.0)
    recording = threading.Thread(target=recorder.record, args=(started(2),))
    recording.start()
    recording.join(10.0)
    was_free = not recording.is_alive()
    answers.set()
    for thread in (saving, recording):
        thread.join(30.0)
    assert was_free
