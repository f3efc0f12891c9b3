"""`forebay run` of a sweep's file: errors before training.

The file has a function `sweep`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.sweep.made import record, trial

from forebay.cli.job_file import job_of, job_or_sweep_of
from forebay.cli.runs import headline
from forebay.errors import BadJob
from forebay.sweep.record.status import SweepStatus
from forebay.sweep.sweep import Sweep
from forebay.training.job.job import Job

Call = Callable[..., Any]
SWEEP = """
from small_job import job
from forebay.training.job.duration import Seconds
from forebay.sweep.sweep import Sweep

def sweep(data: str, cache: str, storage: str, trials: int = 2, deadline: Seconds | None = None):
    fixed = {"data": data, "cache": cache}
    return Sweep(job, {"lanes": [2, 4]}, "loss", "min", num_trials=trials, fixed=fixed, deadline_s=deadline,
                 storage=storage)
"""


@pytest.fixture
def sweep_words(job_words: Call, tmp_path: Path) -> Callable[..., list[str]]:
    (tmp_path / "small_sweep.py").write_text(SWEEP)
    return lambda **given: [str(tmp_path / "small_sweep.py"), *job_words(**given)[1:]]


def test_words_become_a_sweep(sweep_words: Call, job_words: Call) -> None:
    path, *words = sweep_words(trials=3, deadline="1m30s")
    sweep = job_or_sweep_of(path, words)
    assert isinstance(sweep, Sweep)
    assert (sweep.num_trials, sweep.deadline_s) == (3, 90.0)
    path, *words = job_words()
    assert isinstance(job_or_sweep_of(path, words), Job)


def test_the_job_beside_a_sweep_can_be_warmed(sweep_words: Call) -> None:
    path, *words = sweep_words()
    assert job_of(path, words).name == "small"


def test_what_a_sweep_does_not_take(forebay: Call, sweep_words: Call) -> None:
    said = forebay("run", *sweep_words(trails=3))
    assert said.code == 2 and "no parameter 'trails'. Did you mean 'trials'?" in said.err
    assert "\n  deadline: Seconds | None = None" in said.err
    said = forebay("run", *sweep_words(deadline="soon"))
    assert said.code == 2 and "deadline=soon is not of type Seconds | None" in said.err
    said = forebay("run", "--driver", "horse", *sweep_words())
    assert said.code == 2 and "horse" in said.err


def test_an_answer_that_is_neither(tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("def sweep():\n    return {}\n")
    with pytest.raises(BadJob, match=r"sweep\(\) returned dict, not a Job or a Sweep"):
        job_or_sweep_of(str(tmp_path / "none.py"), [])
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(BadJob, match="defines no function 'sweep' or 'job'"):
        job_or_sweep_of(str(tmp_path / "empty.py"), [])


def test_lines_of_a_sweep() -> None:
    standing = SweepStatus.of(record(trial("a", 0.7)), "runs/ctr")
    assert headline(standing) == "sweep ctr: best auc 0.7000 (a), 1:00 so far"
    assert headline(replace(standing, best=None, slots=4, deadline_left_s=90.0, stopping="enough")) == (
        "sweep ctr: no value yet, 1 of 4 slots in use, 1:30 until the deadline, stopping: enough"
    )
