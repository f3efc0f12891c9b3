"""The report shows everything that was recorded about a run, and says what is missing."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.unit.training.run_report.made import EVIL, write_run
from tests.waiting import SetClock

from forebay.errors import InvalidOption
from forebay.events import INTERRUPTED, Evaluated, Failed, MachineUse, NodeUsed, Sample
from forebay.report.bars import MAX_BARS
from forebay.training.run_report.incidents import incidents_of
from forebay.training.run_report.learning import moving_mean
from forebay.training.run_report.pictures import rate_points
from forebay.training.run_report.recorded_run import RecordedRun, load_run, recorded
from forebay.training.run_report.report_page import MAX_RUNS, report_of, write_report
from forebay.training.run_report.summary import differences, facts_of
from forebay.training.runs.result import Result, load_result, save_result
from forebay.training.runs.timeline.recorder import MAX_NODES, MAX_USE, TimelineRecorder
from forebay.training.runs.timeline.timeline import FILE_NAME, RunStart, StartOrigin, Timeline, load_timeline

SECTIONS = ["Curves", "Where the time went", "Throughput and events", "Cache, reads and retries", "What was run"]


def titles(page: str) -> list[str]:
    return re.findall("<h2>(.*?)</h2>", page)


def test_a_run_has_every_section_and_its_texts_are_escaped(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path))
    page = report_of([run])
    assert titles(page) == SECTIONS
    assert EVIL not in page and "<script" not in page and "alert(&#39;x&#39;)" in page
    for known in ("0.7900", "epoch 3", "train_ctr.py", "2.13.0", "120/120", "reads tried again", "3fa1" * 16):
        assert known in page
    # Two curves with two axes each, two bars, rows per second and workers.
    assert page.count("<svg") == page.count('role="img"') == 12


def test_incidents_say_what_they_cost(tmp_path: Path) -> None:
    found = incidents_of(load_run(write_run(tmp_path)))
    told = [(each.what.partition(":")[0], each.gap_s, each.repeated_steps) for each in found]
    assert told == [
        ("start 1 on node-7", None, None),
        ("training begins on 2 workers", 2.6, 0),
        ("resized from 2 to 4 workers", 1.65, 0),
        ("workers were lost (failure 1)", 2.56, 20),
        ("warning", None, None),
        ("back to step 250, 20000 rows skipped", None, 10),
        ("finished", None, None),
    ]


def test_the_rate_is_zero_while_nothing_trains(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path))
    lost = next(each for each in incidents_of(run) if each.kind == "bad")
    points = rate_points(run)
    assert [rate for at_s, rate in points if at_s < lost.at_s + 1][-1] == 0
    assert max(rate for at_s, rate in points if at_s > lost.at_s + 5) > 300_000


def test_a_killed_run_shows_what_there_is(tmp_path: Path) -> None:
    path = write_run(tmp_path, is_killed=True)
    run = load_run(path)
    assert run.result is None and run.state == "cut off"
    page = report_of([run])
    assert "The record is cut off" in page and "No epoch has ended" in page and "resized from 2 to 4" in page
    assert ">loss<" in page
    newest = run.newest
    assert newest is not None
    assert replace(run, read_at=newest.at + newest.last_s + 1).state == "under way"
    write_run(tmp_path)
    both = load_run(path)
    assert both.state == "finished" and len(both.timeline.starts) == 2
    kinds = [each.what for each in incidents_of(both) if "without a word" in each.what]
    assert len(kinds) == 1 and ", 2 starts" in report_of([both])


def test_a_result_without_a_timeline_says_so(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    (Path(path) / FILE_NAME).unlink()
    page = report_of([load_run(path)])
    assert "There is no timeline.json" in page and "Where the time went" in titles(page)
    nothing = RecordedRun(name="none", path=path, result=Result(name="none", path=path, plan_id="p", num_epochs=1))
    assert "No metric was reported" in report_of([nothing])


def test_errors_name_the_folder_and_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="not the folder of a run or a sweep"):
        load_run(str(tmp_path / "none"))
    path = write_run(tmp_path)
    (Path(path) / FILE_NAME).write_text('{"version": 99}')
    with pytest.raises(InvalidOption, match=r"timeline\.json of a Forebay run of version 1"):
        load_run(path)
    run = RecordedRun(name="a", path=path)
    with pytest.raises(InvalidOption, match=f"up to {MAX_RUNS} runs"):
        report_of([run] * (MAX_RUNS + 1))


def test_runs_side_by_side_say_what_differed(tmp_path: Path) -> None:
    runs = [load_run(write_run(tmp_path, "a")), load_run(write_run(tmp_path, "b", lr=0.003, dim=32))]
    assert differences(runs) == {"config": {"lr": [0.01, 0.003], "dim": [None, 32]}}
    page = report_of(runs)
    assert titles(page)[:2] == ["Side by side", "What differed"]
    assert re.search("<td>lr</td><td>0.01</td><td>0.003</td>", page)
    assert "Nothing that was recorded" in report_of([runs[0], runs[0]]) and "a (2)" in report_of([runs[0], runs[0]])
    facts = facts_of(runs[0])
    assert facts["metrics"] == {"loss": 0.46, "auc": 0.79} and facts["resizes"] == 1 and facts["epochs"] == "3 of 3"


def test_runs_side_by_side_show_all_that_the_report_of_one_shows(tmp_path: Path) -> None:
    made = [write_run(tmp_path, "a"), write_run(tmp_path, "b", lr=0.003), write_run(tmp_path, "c", is_killed=True)]
    page = report_of([load_run(path) for path in made])
    assert titles(page) == [
        *("Side by side", "What differed", "Curves", "Where the time went", "Throughput"),
        *("Cache, reads and retries", "Events", "Equal in all runs", "Runs"),
    ]
    for row in (
        "<td>time without steps</td><td>0:07</td><td>0:07</td><td>0:04</td>",
        "<td>repeated steps</td><td>30</td><td>30</td><td>0</td>",
        "<td>reads tried again</td><td>2</td><td>2</td><td>0</td>",
        "<dt>plan</dt><dd>3fa13fa13fa1</dd>",
        "<dt>commit</dt><dd>9e8d9e8d9e8d</dd>",
        "<dt>torch</dt><dd>2.13.0</dd>",
    ):
        assert row in page, row
    assert "<dt>lr</dt>" not in page and page.count("resized from 2 to 4 workers") == 3
    assert "Seconds of data workers and loaders in an epoch" in page and "Equal in all runs" not in report_of(
        [load_run(made[0]), RecordedRun(name="none", path="none")]
    )


def test_many_epochs_become_few_bars(tmp_path: Path) -> None:
    result = load_result(write_run(tmp_path))
    timeline = load_timeline(str(tmp_path / "ctr"))
    assert result is not None and timeline is not None
    epochs = tuple(replace(result.epochs[0], epoch=number) for number in range(1000))
    page = report_of([recorded(replace(result, epochs=epochs, num_epochs=1000))])
    assert page.count("waiting for data 3.10") == 0 and len(page) < 120_000  # with four axes of each curve
    assert len(re.findall(r">\d+ to [\d.k]+</text>", page)) <= 2 * MAX_BARS


def test_a_notebook_shows_the_report_of_a_result(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    result = load_result(path)
    assert result is not None and result._repr_html_() is None
    write_report(load_run(path))
    shown = result._repr_html_()
    assert shown is not None and shown.startswith("<style>") and shown.endswith("</div>") and "<body" not in shown
    assert titles(shown) == SECTIONS


def test_evaluations_have_a_table_and_a_curve_by_step_and_samples_are_escaped(tmp_path: Path) -> None:
    sample = Sample(prompt=f"question {EVIL}", text=f"answer {EVIL}")
    found = tuple(
        Evaluated(
            step=step,
            epoch=0,
            position=0,
            rows=step,
            metrics={"validation_loss": 2.0 - step / 100},
            is_best=True,
            samples=(sample,),
        )
        for step in (0, 50, 100)
    )
    result = Result(name="mine", path=str(tmp_path / "mine"), plan_id="p", num_epochs=1, evaluations=found)
    save_result(result)
    page = report_of([load_run(result.path)])
    assert "validation_loss, of each evaluation" in page
    assert "Samples after step 100" in page and "Samples after step 50" not in page
    assert "question &lt;script&gt;" in page and EVIL not in page


def test_the_best_value_stands_beside_the_last_one(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path))
    assert run.result is not None
    epochs = [
        replace(each, metrics={"auc": auc, "odd": 1.0}) for each, auc in zip(run.epochs, (0.7, 0.8, 0.6), strict=True)
    ]
    found = replace(run, result=replace(run.result, epochs=tuple(epochs)))
    assert "<dt>auc</dt><dd>0.6000<small>best 0.8000, epoch 2</small>" in report_of([found])
    assert facts_of(found)["best"] == {"auc": {"value": 0.8, "step": 200, "epoch": 1}}
    both = report_of([found, replace(run, name="other")])
    assert "<td>best auc</td><td>0.8000</td><td>0.7900</td>" in both and "best odd" not in both


def test_a_metric_with_the_name_of_a_measure_is_shown(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path))
    assert run.result is not None
    epochs = [
        replace(each, metrics={"cost": cost, "state": 1.0, "brier_score": cost})
        for each, cost in zip(run.epochs, (0.3, 0.1, 0.2), strict=True)
    ]
    found = replace(run, result=replace(run.result, epochs=tuple(epochs)))
    page = report_of([found])
    assert "<dt>cost</dt><dd>0.2000</dd>" in page and "<dt>state of the run</dt><dd>finished</dd>" in page
    assert "<dt>brier_score</dt><dd>0.2000<small>best 0.1000, epoch 2</small>" in page


def test_an_interrupted_run_is_not_failed_and_says_how_it_continues(tmp_path: Path) -> None:
    path = write_run(tmp_path, is_killed=True)
    timeline = load_timeline(path)
    assert timeline is not None
    recorder = TimelineRecorder(path, RunStart(at=1.8e9, attempt=2, origin=StartOrigin()), timeline)
    recorder.record(Failed(error=INTERRUPTED, failures=1, will_retry=False))
    recorder.save()
    run = load_run(path)
    page = report_of([run])
    assert run.state == "interrupted" and incidents_of(run)[-1].what == "interrupted"
    assert "run the same job with <code>name=ctr</code>" in page
    assert "failed" not in "".join(re.findall('class="notice(.*?)"', page)) and "The run failed" not in page


def test_curves_are_drawn_over_steps_and_time_with_both_scales(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path))
    page = report_of([run])
    drawn = re.findall('<figure class="([^"]*)"><figcaption>loss<', page)
    assert drawn == ["by-step linear", "by-step log", "by-time linear", "by-time log"]
    steps, times = run.step_times
    assert steps == sorted(set(steps)) and times == sorted(times) and steps[-1] == 300
    negative = [replace(each, metrics={"margin": -1.0}) for each in run.epochs]
    assert run.result is not None
    below = replace(run, result=replace(run.result, epochs=tuple(negative), steps=()))
    assert re.findall('<figure class="([^"]*)"><figcaption>margin', report_of([below])) == ["by-step", "by-time"]
    (Path(run.path) / FILE_NAME).unlink()
    assert re.findall('<figure class="([^"]*)"><figcaption>loss<', report_of([load_run(run.path)])) == ["linear", "log"]


def test_machines_are_drawn_over_time_and_their_record_is_bounded(tmp_path: Path) -> None:
    path, clock = write_run(tmp_path), SetClock()
    recorder = TimelineRecorder(path, RunStart(at=1.8e9, attempt=2, origin=StartOrigin()), load_timeline(path), clock)
    for number in range(1000):
        clock.now += 5
        for node in range(9):
            recorder.record(used(f"node-{node}", number / 1000))
    recorder.save()
    run = load_run(path)
    text = run.timeline.to_json()
    assert Timeline.from_json(text).to_json() == text
    first = json.loads(text)["starts"][-1]["use"]["node-0"][0]
    assert len(first) == 9 and first[:4] == [5.0, 0.5, 0.25, 0.0], "a point is a list of numbers"
    use = run.timeline.starts[-1].use
    assert len(use) == MAX_NODES and all(64 <= len(points) <= MAX_USE for points in use.values())
    assert [(each[0].at_s, each[-1].at_s) for each in use.values()] == [(5, 5000)] * MAX_NODES
    gaps = [late.at_s - early.at_s for early, late in pairwise(use["node-0"])]
    assert max(gaps) <= 5000 / 32, "the whole time is drawn"
    page = report_of([run])
    assert "Machines" in titles(page) and "GPU busy, over running time" in page
    assert "memory, over" in page and "GPU memory, over" not in page, "it is not known"
    assert run.gpu_share is not None and 0.3 < run.gpu_share < 0.7


def used(node: str, gpu: float) -> NodeUsed:
    use = MachineUse(
        cpu=0.5,
        memory=0.25,
        gpu=gpu,
        gpu_memory=math.nan,
        disk_read_bytes_per_s=1e6,
        disk_write_bytes_per_s=2e6,
        received_bytes_per_s=0.0,
        sent_bytes_per_s=1.0,
    )
    return NodeUsed(node=node, use=use)


@pytest.mark.parametrize("extreme", [5e-324, 1e-310, 1.7e308, -1.7e308])
def test_a_metric_beyond_all_axes_does_not_cost_the_report(extreme: float, tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path))
    assert run.result is not None
    epochs = [replace(each, metrics={**each.metrics, "p": extreme}) for each in run.result.epochs[:1]]
    steps = [replace(each, metrics={"loss": extreme}) for each in run.result.steps[:3]]
    result = replace(run.result, epochs=(*epochs, *run.result.epochs[1:]), steps=(*steps, *run.result.steps[3:]))
    assert titles(report_of([replace(run, result=result)])) == SECTIONS


def test_the_moving_mean_recovers_from_one_huge_loss(tmp_path: Path) -> None:
    losses = np.full(600, 0.5)
    losses[100] = 1e20
    means = moving_mean(losses)
    assert means[99] > 1e18 and np.all(means[150:] == 0.5)
