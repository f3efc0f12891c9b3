"""Instruments of the conformance suite.

The model that counts rows, the log of attempts, the script of changes.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
import torch

from forebay.events import Reported, Resized, Started
from forebay.testing.drivers.bench import ROWS, DriverBench
from forebay.testing.drivers.counting_model import CountingModel, build_optimizer, train_step
from forebay.testing.drivers.events import StepAttempt
from forebay.testing.drivers.fixed_suite import ends_within
from forebay.testing.drivers.script import OVER, Cue, Script, resize
from forebay.testing.drivers.suite import DriverSuite
from forebay.training.driver.driver import run
from forebay.training.job.elastic import Elastic
from forebay.training.runs.control import Control
from forebay.training.worker.worker import Worker


@pytest.fixture
def bench(tmp_path: Path) -> DriverBench:
    return DriverBench(tmp_path)


def test_sound_run_passes(bench: DriverBench) -> None:
    result = run(bench.job("sound"), "local")
    bench.assert_every_row_once(result)
    bench.assert_like_undisturbed(result)
    assert bench.steps_redone("sound") == 0
    assert [each.step for each in bench.attempts("sound")] == list(range(16))


@pytest.mark.parametrize("fault", ["repeat", "skip", "forget"])
def test_model_that_saw_other_rows_is_found_out(bench: DriverBench, fault: str) -> None:
    def train(worker: Worker) -> None:
        model, optimizer = worker.setup(CountingModel(ROWS), build_optimizer)
        for batch in worker.loader():
            times = {"repeat": 2, "skip": 0, "forget": 1}[fault] if worker.step == 5 else 1
            for _ in range(times):
                train_step(model, optimizer, batch, worker.world.size)
            if fault == "forget" and worker.step == 5:
                with torch.no_grad():
                    model.counts.zero_()  # as if an older model continued at a newer cursor
            worker.commit(loss=0.0)

    result = run(bench.job("faulty", train=train), "local")
    with pytest.raises(AssertionError, match=r"row \d+ of epoch 0 (0|2) times"):
        bench.assert_every_row_once(result)


def test_model_that_is_elsewhere_is_found_out(bench: DriverBench) -> None:
    def train(worker: Worker) -> None:
        model, optimizer = worker.setup(CountingModel(ROWS), build_optimizer)
        for batch in worker.loader():
            batch["label"] = batch["label"] * (1 + (worker.step == 3))
            worker.commit(loss=train_step(model, optimizer, batch, worker.world.size))

    result = run(bench.job("elsewhere", train=train), "local")
    bench.assert_every_row_once(result)
    with pytest.raises(AssertionError, match="not close"):
        bench.assert_like_undisturbed(result)


def test_comparing_with_nothing_is_no_comparison(bench: DriverBench, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(bench.job("alone", epochs=1), "local")
    monkeypatch.setattr(DriverBench, "_undisturbed", lambda *_: {})
    with pytest.raises(AssertionError, match="never came to step 8"):
        bench.assert_like_undisturbed(result)


def test_suite_passes_no_driver_that_says_nothing_of_itself() -> None:
    suite = DriverSuite()
    for ask in (suite.make_driver, suite.leftovers, partial(suite.lose_memory, "run")):
        with pytest.raises(NotImplementedError):
            ask()


def test_what_waits_for_ever_fails_by_assertion() -> None:
    with pytest.raises(AssertionError, match=r"did not end within 0\.2 s"), ends_within(0.2):
        time.sleep(60)
    with ends_within(60):
        pass
    with pytest.raises(KeyboardInterrupt), ends_within(60):
        raise KeyboardInterrupt  # the user's own


def test_loss_that_is_no_number_is_found_out(bench: DriverBench) -> None:
    def train(worker: Worker) -> None:
        model, optimizer = worker.setup(CountingModel(ROWS), build_optimizer)
        for batch in worker.loader():
            train_step(model, optimizer, batch, worker.world.size)
            worker.commit(loss=float("nan") if worker.step == 3 else 0.0)

    with pytest.raises(AssertionError, match="not finite"):
        bench.assert_every_row_once(run(bench.job("lost", train=train), "local"))


def test_steps_redone_and_members_are_read_from_the_log(bench: DriverBench) -> None:
    bench.job("logged")
    log = bench.folder / "rows" / "logged" / "attempts"
    tries = [(0, 0, 1), (1, 0, 1), (1, 0, 2), (1, 1, 2), (2, 1, 2), (2, 0, 2)]
    lines = [
        StepAttempt(time=float(at), step=step, rank=rank, size=size, pid=100 * size + rank, node="here")
        for at, (step, rank, size) in enumerate(tries)
    ]
    log.write_text("".join(each.to_line() for each in lines))
    assert bench.attempts("logged") == lines
    assert bench.steps_redone("logged") == 1
    assert {rank: each.pid for rank, each in bench.members("logged").items()} == {0: 200, 1: 201}


def started(workers: int) -> Started:
    return Started(name="run", world_size=workers, epochs=2, num_batches=8)


STEP = Reported(step=1, epoch=0, position=16, metrics={}, rows=16)


def test_script_waits_for_each_change() -> None:
    control = Control(elastic=Elastic(min_workers=1, max_workers=4, start=1))
    script = Script(
        [
            Cue(workers=1, act=resize(4)),
            Cue(when="at once", act=resize(2)),
            Cue(when="changing", act=resize(3, 1)),
            Cue(workers=1, act=lambda _: None),
        ]
    )
    told = [
        (started(1), 1),
        (STEP, 1),
        (STEP, 4),
        (STEP, 2),
        (STEP, 2),
        (Resized(old=1, new=2, step=4), 1),
        (started(2), 1),
        (STEP, 1),
        (STEP, 1),
        (started(1), 1),
        (STEP, 1),
    ]
    for event, wanted in told:
        script(event, control)
        assert control.target == wanted
    assert not script.is_over
    script(STEP, control)
    assert script.is_over
    assert control.stop_reason == OVER


def test_script_that_loses_workers_believes_no_old_step() -> None:
    control = Control(elastic=Elastic(min_workers=1, max_workers=2))
    losses: list[int] = []
    cue = Cue(workers=2, act=lambda _: losses.append(1), loses_workers=True)
    script = Script([cue, cue])
    for event in (started(2), STEP, STEP, STEP, STEP, STEP):
        script(event, control)
    assert len(losses) == 1
    for event in (started(2), STEP, STEP):
        script(event, control)
    assert len(losses) == 2


def test_script_gives_up_by_name() -> None:
    script = Script([Cue(workers=3, act=resize(1))], patience_s=0.0)
    with pytest.raises(AssertionError, match="cue 1 of 1 was not reached .* 3 workers training; there are 2"):
        script(started(2), Control(elastic=Elastic(min_workers=1, max_workers=3)))
