"""A sweep by the command, in its own processes: listed, interrupted, resumed by its name, and stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
from tests.ray.sweep.small_sweeps import STEPS_PER_EPOCH, SmallSweeps

from forebay.errors import ExitCode
from forebay.sweep.record.record import TrialRecord, load_record

WAIT_S = 180.0
FOREBAY = [sys.executable, "-c", "from forebay.cli.app import main; main()"]
# The second trial takes two minutes, long enough for four commands to start meanwhile.
EPOCHS = 8
JOB_FILE = """
from pathlib import Path
from tests.ray.sweep.small_sweeps import SmallSweeps


def sweep(folder: Path, name: str):
    space = {"step_s": {"grid_search": [0.0, 2.0]}, "key": ["x"]}
    return SmallSweeps(folder).sweep(space, num_trials=2, max_concurrent=1, name=name, fixed={"epochs": 8})
"""


class Command:
    """`forebay` on the cluster of the tests."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._job_file = folder / "slow_ctr.py"
        self._job_file.write_text(JOB_FILE)
        self._root, self._folder = root, folder
        self._environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
        self.started: list[subprocess.Popen[str]] = []

    def run(self) -> subprocess.Popen[str]:
        words = [*FOREBAY, "run", str(self._job_file), f"folder={self._folder}", "name=ctr"]
        pipe = subprocess.PIPE
        process = subprocess.Popen(words, env=self._environment, cwd=self._root, text=True, stdout=pipe, stderr=pipe)
        self.started.append(process)
        return process

    def ask(self, *words: str) -> str:
        told = subprocess.run(
            [*FOREBAY, *words], env=self._environment, cwd=self._root, text=True, capture_output=True, check=False
        )
        assert told.returncode == 0, told.stderr
        return told.stdout

    @property
    def trials(self) -> list[TrialRecord]:
        """Trials on record: the fast one, then the slow one."""
        record = load_record(str(self._folder / "sweeps" / "ctr"))
        assert record is not None
        return sorted(record.trials.values(), key=lambda trial: float(trial.config["step_s"]))


@pytest.fixture
def command(ray_session: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Command]:
    made = Command(request.config.rootpath, tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


@pytest.mark.variation
@pytest.mark.parametrize(("by", "code"), [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)])
def test_a_sweep_by_its_name_through_an_interrupt_and_a_stop(
    command: Command, tmp_path: Path, by: signal.Signals, code: ExitCode
) -> None:
    def steps() -> list[int]:
        return SmallSweeps(tmp_path).steps("x")[EPOCHS * STEPS_PER_EPOCH :]  # after the fast trial's

    first = command.run()
    until(lambda: len(steps()) >= 2, first)
    facts = json.loads(command.ask("jobs", "--ray", "--json"))
    assert [sweep["name"] for sweep in facts["sweeps"]] == ["ctr"]
    assert sorted(trial["state"] for trial in facts["sweeps"][0]["trials"]) == ["finished", "running"]
    first.send_signal(by)
    _, said = first.communicate(timeout=WAIT_S)
    assert first.returncode == code and "Traceback" not in said
    finished, cut = command.trials
    assert (finished.state, finished.epochs, cut.state) == ("finished", EPOCHS, "pending")

    made = steps()
    again = command.run()
    until(lambda: len(steps()) >= len(made) + 1, again)
    assert "its trials end at their next checkpoints" in command.ask("stop", "ctr", "--reason", "seen enough")
    said, _ = again.communicate(timeout=WAIT_S)
    assert again.returncode == 0 and "seen enough" in said
    kept, stopped = command.trials
    assert kept == finished and stopped.state == "stopped"
    assert steps() == list(range(len(steps()))) and len(made) < len(steps()) < EPOCHS * STEPS_PER_EPOCH


def until(is_so: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
