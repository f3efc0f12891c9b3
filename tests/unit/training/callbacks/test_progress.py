"""One bar on a terminal, few lines in a log. Both show epoch, step, loss, speed, waiting and time left."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console
from tests.cell import Cell

from forebay.events import (
    INTERRUPTED,
    EpochEnded,
    Evaluated,
    Event,
    Failed,
    Finished,
    Preempted,
    Reported,
    Resized,
    RolledBack,
    Sample,
    Started,
    Warned,
)
from forebay.training.callbacks.progress import Progress
from forebay.training.runs.control import Control

STARTED = Started(name="ctr", world_size=2, epochs=3, num_batches=1000)


class Show:
    """A progress bar whose clock the test sets."""

    def __init__(self, *, terminal: bool) -> None:
        self.now = 0.0
        self.screen = io.StringIO()
        console = Console(file=self.screen, force_terminal=terminal, width=120, highlight=False)
        self.progress = Progress(console, clock=lambda: self.now)

    def tell(self, *events: Event) -> list[str]:
        """Lines on the screen after `events`."""
        for event in events:
            self.progress(event, Control())
        return self.screen.getvalue().splitlines()


def reported(step: int) -> Reported:
    return Reported(
        step=step, epoch=step // 1000, position=0, metrics={"loss": 0.43123}, rows=step * 8192, wait_s=step * 0.001
    )


def ended(epoch: int) -> EpochEnded:
    metrics = {"loss": 0.4, "auc": 0.75}
    return EpochEnded(
        epoch=epoch, step=1000, metrics=metrics, rows=8_192_000, seconds=100.0, wait_s=3.0, eval_s=0.0, checkpoint_s=0.0
    )


def test_log_line_has_everything() -> None:
    show = Show(terminal=False)
    show.tell(STARTED)
    for step in range(1, 101):
        show.now = step * 0.1
        lines = show.tell(reported(step))
    assert lines[0] == "ctr: 2 workers, 3 epochs of 1000 steps."
    assert lines[1] == "epoch 1/3, step 51/3000, loss 0.4312, 81.9k rows/s, 1 % waiting, 4:55 left"
    assert len(lines) == 2


def test_log_is_no_flood_however_long_the_run() -> None:
    show = Show(terminal=False)
    show.tell(STARTED)
    for second in range(2 * 3600):
        show.now = float(second)
        show.tell(reported(second + 1))
    lines = show.tell(Finished(name="ctr", path="/runs/ctr"))
    assert 2 * 60 < len(lines) < 2 * 60 + 60
    assert lines[-1] == "ctr finished after 1:59:59."


def test_epochs_failures_and_end_stay_in_the_log() -> None:
    show = Show(terminal=False)
    lines = show.tell(
        STARTED,
        ended(0),
        Failed(error="worker 1 was killed by SIGKILL", failures=1, will_retry=True),
        STARTED,
        Finished(name="ctr", path="/runs/ctr", stopped="loss is low"),
    )
    assert lines[1] == "epoch 1/3 took 1:40: loss 0.4000, auc 0.7500, 81.9k rows/s, 3 % waiting"
    assert lines[2] == "worker 1 was killed by SIGKILL. Starting again from the newest checkpoint (failure 1)."
    assert lines[-1].startswith("ctr stopped: loss is low after 0:00")


def test_an_epoch_says_where_its_time_went() -> None:
    show = Show(terminal=False)
    counters = {"remote_read_s": 2.1, "decode_s": 118.3, "map_s": 0.3, "gather_s": 2.2, "wait_s": 3.0}
    lines = show.tell(STARTED, replace(ended(0), counters=counters))
    text = "  by stage: read 2.10, decode 118, transform 0, write 0, map 0.30, gather 2.20, copy 0, wait 3.00 s"
    assert lines[-1] == text
    assert len(text) <= 110


def test_a_fenced_attempt_does_not_end_the_run() -> None:
    show = Show(terminal=False)
    fenced = Failed(error="Fenced: a later attempt has taken over this run", failures=1, will_retry=False)
    (line,) = show.tell(STARTED, fenced)[-1:]
    assert line == "This attempt has ended. The run goes on elsewhere."


def test_terminal_has_one_bar_and_puts_it_away() -> None:
    show = Show(terminal=True)
    show.tell(STARTED, reported(1))
    show.now = 1.0
    show.tell(reported(11))
    assert show.progress._bar is not None
    text = "\n".join(show.tell(Failed(error="ValueError: boom on rank 0", failures=1, will_retry=False)))
    assert "step 11/3000" in text
    # The run raises the error itself: it is shown once.
    assert "The run has ended." in text and "boom" not in text
    assert show.progress._bar is None
    assert text.endswith("\x1b[?25h") or "\x1b[?25h" in text, "the cursor was not given back"


def test_job_without_a_loss_is_shown_too() -> None:
    show = Show(terminal=False)
    show.tell(STARTED, Reported(step=1, epoch=0, position=0, metrics={}, rows=1))
    show.now = 6.0
    lines = show.tell(Reported(step=2, epoch=0, position=0, metrics={}, rows=2))
    assert "loss" not in lines[-1] and "step 2/3000" in lines[-1]


def test_what_steers_a_run_is_told() -> None:
    show = Show(terminal=False)
    lines = show.tell(
        STARTED,
        Resized(old=2, new=1, step=800),
        Preempted(node="n3", workers=2),
        Preempted(node="n3", workers=64, others=tuple(f"n{number}" for number in range(4, 11))),
        RolledBack(reason="NanGuard: loss of step 7 not finite", from_step=7, to_step=4, skipped_rows=64),
        RolledBack(reason="a spike", from_step=7, to_step=4),
        Warned(reason="EmbeddingNorms: users grows", step=12),
    )
    assert lines[1:] == [
        "after step 800 the run continues with 1 worker instead of 2.",
        "node n3 is being taken away, with 2 workers on it.",
        "node n3 and 7 others are being taken away, with 64 workers on them.",
        "NanGuard: loss of step 7 not finite. Back from step 7 to step 4, without 64 rows.",
        "a spike. Back from step 7 to step 4, once more.",
        "EmbeddingNorms: users grows (step 12).",
    ]


def test_steps_left_follow_the_global_batch() -> None:
    """Three epochs: 1000 steps of 10 rows, then steps of 40 rows from the second epoch on."""
    show = Show(terminal=False)
    first = Reported(step=1, epoch=0, position=10, metrics={}, rows=10, global_batch=10)
    show.tell(STARTED, first)
    show.now = 6.0
    lines = show.tell(replace(first, step=1010, epoch=1, position=400, rows=10_400, global_batch=40))
    assert "step 1010/1500, " in lines[-1]


def test_evaluations_have_a_line_each_and_samples_are_cut() -> None:
    show = Show(terminal=False)
    sample = Sample(prompt="a " * 100 + "question?", text="an\nanswer", wanted="another")
    shown = Evaluated(
        step=0, epoch=0, position=0, rows=0, metrics={"validation_loss": 2.5}, is_best=True, samples=(sample,)
    )
    lines = show.tell(STARTED, shown, replace(shown, step=1000, ends_epoch=True, is_best=False))
    assert lines[1] == "step 0: validation_loss 2.5000 (the best so far)"
    assert lines[2].startswith('  "...') and lines[2].endswith(' a question?" -> "an answer" (wanted "another")')
    assert lines[3:] == [lines[2]], "an epoch's line has the metrics of its evaluation"


def test_steps_left_end_at_max_steps() -> None:
    show = Show(terminal=False)
    show.tell(replace(STARTED, max_steps=60))
    for step in range(1, 101):
        show.now = step * 0.1
        lines = show.tell(reported(step))
    assert lines[1].startswith("epoch 1/3, step 51/60, ") and lines[1].endswith(" 0:01 left")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ((), "run the same job with name=ctr"),
        (("forebay", "run", "a b.py"), "forebay run 'a b.py' name=ctr"),
        (("forebay", "run", "a.py", "name=ctr"), "a.py name=ctr"),
    ],
)
def test_an_interrupted_run_says_how_it_continues(command: tuple[str, ...], told: str) -> None:
    output = io.StringIO()
    show = Progress(Console(file=output, width=200), command=command)
    show(STARTED, Control())
    show(Failed(error=INTERRUPTED, failures=1, will_retry=False), Control())
    assert "Interrupted. The run has ended. To continue at its newest checkpoint" in output.getvalue()
    assert output.getvalue().rstrip(". \n").endswith(told)


def test_a_notebook_has_one_bar_that_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell.present(monkeypatch)
    progress = Progress(Console(file=io.StringIO(), force_jupyter=True, highlight=False), clock=lambda: 0.0)
    for event in (STARTED, reported(1500)):
        progress(event, Control())
    (bar,) = [shown for shown in cell.shown if "<progress" in shown]
    assert "value=1500 max=3000" in bar and "epoch 2/3, step 1500/3000, loss 0.4312" in bar
    progress(ended(1), Control())
    progress(Finished(name="ctr", path="runs/ctr"), Control())
    assert [shown for shown in cell.shown if "<progress" in shown] == []
    assert any("epoch 2/3 took" in shown for shown in cell.shown)
