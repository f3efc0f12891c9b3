"""The local driver: the laws of all drivers with processes, and its own: training in this process."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.language.suite import LanguageSuite
from tests.tables.driver_suite import TableSuite
from tests.unit.kept_server import KeptForkServer

from forebay.data.plan.plan import build_plan
from forebay.errors import BadJob, CursorMismatch, InvalidOption, RunFailed
from forebay.events import EpochEnded, Event, Failed, NodeUsed, Preparing, Reported, Started
from forebay.runtime import fork_server, gpus
from forebay.runtime.fork_server import ForkServer
from forebay.testing.drivers.bench import DriverBench
from forebay.testing.drivers.fixed_suite import (
    assert_same_model,
    in_each_order,
)
from forebay.testing.drivers.sharded_suite import ZERO
from forebay.training.driver import worker_main
from forebay.training.driver.driver import Driver, run
from forebay.training.driver.local.driver import LocalDriver, worker_program
from forebay.training.driver.local.processes import worker_processes
from forebay.training.job.elastic import Elastic
from forebay.training.job.job import Job
from forebay.training.job.resources import Resources
from forebay.training.runs.control import Control
from forebay.training.runs.result import Result, load_result, save_result
from forebay.training.runs.timeline.timeline import load_timeline
from forebay.training.state.known_reports import KnownReports
from forebay.training.worker.worker import TrainFunction, Worker


class TestLocalProcesses(LanguageSuite, TableSuite):
    driver_path = "forebay.training.driver.local.driver:LocalDriver"
    # Every change starts new processes. test_elastic.py has each kind of change, and other tests here kill a worker.
    # Horovod has the elastic core's other laws. Its changes of mind take three times as long.
    variations = frozenset(
        {
            "test_all_that_holds_memory_is_killed_and_storage_is_what_remains",
            "test_change_of_the_strategy_between_runs_changes_no_loss",
            "test_change_of_the_world_changes_no_loss",
            "test_exact_reduction_has_the_same_bits_in_every_world",
            "test_grows_and_shrinks_as_asked",
            "test_killed_driver_changes_no_bit",
            "test_killed_or_damaged_sharded_run_repeats_every_bit",
            "test_killed_worker_and_damaged_parts_change_no_bit",
            "test_killed_workers_are_replaced_one_or_all",
            "test_lost_node_changes_no_bit",
            "test_strategies_have_equal_losses",
            "test_strategy_may_change_between_runs_of_one_name",
        }
    )
    # The drivers on Ray have those.
    varied_cases = frozenset({"rows", "suspend", *ZERO})

    def make_driver(self) -> Driver:
        return LocalDriver()

    @pytest.fixture(autouse=True)
    def server(self, kept_fork_server: KeptForkServer) -> None:
        self.kept = kept_fork_server

    def leftovers(self) -> list[str]:
        return [line for pid, line in forked_processes().items() if pid != self.kept.pid]

    def lose_memory(self, run: str) -> int:
        return 0  # it keeps checkpoints on disk

    def test_rank_that_returns_early_is_the_one_to_blame(self, bench: DriverBench) -> None:
        def train(worker: Worker) -> None:
            for _ in worker.loader():
                worker.commit()
                if worker.world.rank == 1:
                    return

        with pytest.raises(BadJob, match=r"returned in epoch 1 of 2, after step 1\."):
            self.run(bench, "uneven", train=train, checkpoint_every=1)

    @in_each_order
    def test_one_worker_here_comes_to_the_same_rows(self, bench: DriverBench, calm: Result) -> None:
        self.run(bench, "alone", workers=1)
        assert bench.trained("calm") == bench.trained("alone")


def forked_processes() -> dict[int, str]:
    """Command lines by process id: the fork servers of this process, and their workers."""
    # Without -ww a line ends after 80 characters, before the words that are looked for.
    listing = subprocess.run(["ps", "-wweo", "pid,args"], capture_output=True, text=True, check=True).stdout
    # A forked worker has the command line of its server, which names the driver.
    found = [line.split(maxsplit=1) for line in listing.splitlines() if f"fork_server of {os.getpid()}" in line]
    return {int(pid): line for pid, line in found}


@pytest.fixture
def bench(tmp_path: Path) -> DriverBench:
    return DriverBench(tmp_path)


@pytest.fixture
def no_server_left(one_fork_server: KeptForkServer) -> Iterator[None]:
    """A run ends its server and all workers before it returns. The kept server of other tests may stay."""
    yield
    assert forked_processes().keys() <= {one_fork_server.pid}


def test_one_worker_trains_in_this_thread(bench: DriverBench) -> None:
    places: list[tuple[int, str]] = []
    heard: list[Event] = []

    def train(worker: Worker) -> None:
        places.append((os.getpid(), threading.current_thread().name))
        bench.job("one").train(worker)

    result = run(replace(bench.job("one"), train=train), "local", [lambda event, control: heard.append(event)])
    assert places == [(os.getpid(), "MainThread")]
    assert isinstance(heard[0], Started)
    assert [event.epoch for event in heard if isinstance(event, EpochEnded)] == [0, 1]
    assert result.is_finished


def test_random_state_around_a_run_is_untouched(bench: DriverBench) -> None:
    before = random_state()
    run(bench.job("one", epochs=1), "local")
    assert random_state() == before


def random_state() -> list[object]:
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    return [torch.get_rng_state().tolist(), numpy_state["state"]["key"].tolist(), random.getstate()]


def test_exception_is_told_and_keeps_its_frames(bench: DriverBench) -> None:
    heard: list[Event] = []
    with pytest.raises(RunFailed, match="ValueError: boom in the train function on rank 0") as failure:
        run(bench.job("one", at_step=5, event="raise"), "local", [lambda event, control: heard.append(event)])
    cause = failure.value.__cause__
    assert isinstance(cause, ValueError)
    assert cause.__traceback__ is not None, "a debugger could not go to the train function"
    assert isinstance(heard[-1], Failed)


def test_stop_and_go_on_in_this_process(bench: DriverBench) -> None:
    def stop_soon(event: Event, control: Control) -> None:
        if isinstance(event, Reported):
            control.stop("enough for today")

    first = run(bench.job("stopped"), "local", [stop_soon])
    assert (first.stopped, first.is_finished) == ("enough for today", False)
    second = run(bench.job("stopped"), "local")
    assert bench.rows("stopped") == {**bench.rows("stopped"), **bench.rows("calm")}
    assert_same_model(second, run(bench.job("calm"), "local"))
    assert bench.rows("stopped") == bench.rows("calm")


def test_finished_run_can_be_given_more_epochs(bench: DriverBench) -> None:
    run(bench.job("done", epochs=1), "local")
    longer = run(bench.job("done", epochs=2), "local")
    assert [epoch.epoch for epoch in longer.epochs] == [0, 1]
    assert_same_model(longer, run(bench.job("calm", epochs=2), "local"))
    assert run(bench.job("done", epochs=1), "local") == longer


def test_name_of_another_plan_is_refused(bench: DriverBench) -> None:
    job = bench.job("mine", epochs=1)
    run(job, "local")
    other = replace(job.data, plan=build_plan(job.data.plan.manifest, seed=4, lanes=4))
    with pytest.raises(CursorMismatch, match="give the run a new name"):
        run(replace(job, data=other), "local")


def test_raising_callback_ends_the_run_and_the_others_are_told(bench: DriverBench) -> None:
    heard: list[Event] = []

    def meddle(event: Event, control: Control) -> None:
        if isinstance(event, Reported):
            raise KeyError("no such metric")

    with pytest.raises(RunFailed, match="callback .*meddle raised KeyError"):
        run(bench.job("one"), "local", [meddle, lambda event, control: heard.append(event)])
    assert isinstance(heard[-1], Failed)
    assert not heard[-1].will_retry


def test_names_are_made_from_the_train_function(bench: DriverBench) -> None:
    job = replace(bench.job("x", epochs=1), name=None)
    first, second = run(job, "local"), run(job, "local")
    assert first.name.startswith("recording_train-20")
    assert first.name != second.name


@pytest.mark.parametrize(
    ("found", "options", "says"),
    [
        (0, {"resources": Resources(gpus=1)}, "finds no GPU on this machine"),
        (1, {"resources": Resources(), "workers": 2}, "2 workers need a GPU each, .* this machine has a GPU"),
        (2, {"resources": Resources(), "elastic": Elastic(min_workers=3, max_workers=4)}, "at most 2 workers"),
    ],
)
def test_gpus_that_are_not_there_are_refused_before_a_worker_starts(
    bench: DriverBench, monkeypatch: pytest.MonkeyPatch, found: int, options: dict[str, Any], says: str
) -> None:
    monkeypatch.setattr(gpus, "num_gpus", lambda: found)
    heard: list[Event] = []
    with pytest.raises(InvalidOption, match=says):
        run(bench.job("one", **options), "local", [lambda event, control: heard.append(event)])
    assert [type(event) for event in heard] == [Failed]


@pytest.mark.parametrize(("found", "gpus_of_job"), [(0, None), (8, 0)])
def test_jobs_without_gpus_say_nothing_of_them(
    bench: DriverBench, monkeypatch: pytest.MonkeyPatch, found: int, gpus_of_job: float | None
) -> None:
    monkeypatch.setattr(gpus, "num_gpus", lambda: found)
    heard: list[Event] = []
    devices = list[torch.device]()

    def train(worker: Worker) -> None:
        devices.append(worker.device)
        for _ in worker.loader():
            worker.commit()

    job = bench.job("cpu", resources=Resources(gpus=gpus_of_job), epochs=1, train=train)
    run(job, "local", [lambda event, control: heard.append(event)])
    assert devices == [torch.device("cpu")]
    assert not [event for event in heard if isinstance(event, Preparing)]


def write_nccl_settings(worker: Worker, folder: Path) -> None:
    """Write what was set before the process group was made."""
    found = {name: value for name, value in os.environ.items() if name.startswith("TORCH_NCCL")}
    (folder / str(worker.world.rank)).write_text(json.dumps(found))
    for _ in worker.loader():
        worker.commit()


def test_nccl_never_ends_a_worker_process_before_its_hang_is_named(
    bench: DriverBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    train = partial(write_nccl_settings, folder=tmp_path)
    run(bench.job("nccl", workers=2, epochs=1, hang_timeout_s=400, train=train), "local")
    for rank in range(2):
        found = json.loads((tmp_path / str(rank)).read_text())
        assert (found["TORCH_NCCL_ASYNC_ERROR_HANDLING"], found["TORCH_NCCL_DUMP_ON_TIMEOUT"]) == ("2", "1")
        assert found["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] == "1200"
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in os.environ


def commit_once(worker: Worker) -> None:
    for _ in worker.loader():
        worker.commit()
        break


@pytest.mark.parametrize("train", [commit_once, lambda worker: None])
def test_train_function_that_returns_early_has_not_finished(bench: DriverBench, train: TrainFunction) -> None:
    with pytest.raises(BadJob, match=r"returned in epoch 1 of 2, after step [01]\. Iterate worker.loader\(\)"):
        run(bench.job("early", train=train), "local")


@pytest.mark.parametrize("code", [0, 3])
def test_exit_of_the_train_function_is_a_failure(bench: DriverBench, code: int) -> None:
    def train(worker: Worker) -> None:
        sys.exit(code)

    with pytest.raises(RunFailed, match=f"the train function raised SystemExit: {code} on rank 0"):
        run(bench.job("exit", train=train), "local")


def test_epochs_that_no_driver_heard_of_are_made_up_for(bench: DriverBench) -> None:
    """Workers of a killed driver commit on for a while. Its result contains nothing of that."""
    whole = run(bench.job("a", epochs=4), "local")
    save_result(replace(whole, epochs=whole.epochs[:1], steps=()))
    Path(whole.path, "attempts", "finished-000004.json").unlink()
    heard: list[Event] = []
    again = run(bench.job("a", epochs=4), "local", [lambda event, control: heard.append(event)])
    assert again.is_finished
    assert [epoch.metrics for epoch in again.epochs] == [epoch.metrics for epoch in whole.epochs]
    assert [event.epoch for event in heard if isinstance(event, EpochEnded)] == [1, 2, 3], "no news was told"
    assert load_result(again.path) == again


def test_hole_in_an_old_result_does_not_make_it_endless(bench: DriverBench) -> None:
    whole = run(bench.job("a"), "local")
    save_result(replace(whole, epochs=whole.epochs[1:]))

    def train(worker: Worker) -> None:
        raise AssertionError("trained again")

    assert run(bench.job("a", train=train), "local").is_finished


def test_run_folder_that_is_a_file_is_refused(bench: DriverBench, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "taken").write_text("")
    with pytest.raises(InvalidOption, match=r"'taken' names .*taken, which is a file"):
        run(bench.job("taken"), "local")


def test_lock_around_the_train_function_is_named(bench: DriverBench) -> None:
    lock = threading.Lock()

    def train(worker: Worker) -> None:
        with lock:
            commit_once(worker)

    with pytest.raises(BadJob, match=r"train function train .*variable 'lock'"):
        run(bench.job("locked", train=train, workers=2), "local")


def test_unknown_driver_and_a_driver_of_ones_own(bench: DriverBench) -> None:
    with pytest.raises(InvalidOption, match="driver='slurm' is unknown. Choose one of 'local', 'ray'"):
        run(bench.job("one"), "slurm")

    class Pretend:
        def run(self, job: Job, callbacks: object = ()) -> Result:
            return Result(name="pretended", path="", plan_id="", num_epochs=job.epochs)

    assert run(bench.job("one"), Pretend()).name == "pretended"


@pytest.mark.usefixtures("no_server_left")
def test_killed_fork_server_is_replaced(bench: DriverBench, tmp_path: Path) -> None:
    """All worlds share one fork server. A world whose server and worker are killed is started again from a new one."""
    servers = tmp_path / "servers"

    def train(worker: Worker) -> None:
        if worker.world.is_first:
            with servers.open("a") as out:
                out.write(f"{os.getppid()}\n")
            world = servers.read_text().count("\n")
            if world == 2:
                os.kill(os.getppid(), signal.SIGKILL)
            if world <= 2:
                os.kill(os.getpid(), signal.SIGKILL)
        bench.job("served").train(worker)

    result = run(bench.job("served", train=train, workers=2), "local")
    first, second, third = servers.read_text().split()
    assert first == second != third
    bench.assert_every_row_once(result)


@pytest.mark.usefixtures("no_server_left")
def test_workers_are_spawned_where_a_fork_is_not_safe(bench: DriverBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "_CAN_FORK", False)
    result = run(bench.job("spawned", workers=2, epochs=1), "local")
    bench.assert_every_row_once(result)


@pytest.mark.parametrize(
    "at", [pytest.param(at, marks=() if at == 2 else pytest.mark.variation) for at in (1, 2, 3, 4)]
)
def test_ctrl_c_ends_workers_also_between_a_request_and_its_answer(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Answers 1 and 2 are forked workers, 3 and 4 killed ones. The caller keeps the traceback, as a notebook does."""
    answers = 0

    class Interrupted(Connection):
        def recv(self) -> object:
            nonlocal answers
            answer, answers = super().recv(), answers + 1
            if answers == at:
                signal.raise_signal(signal.SIGINT)
            return answer

    monkeypatch.setattr(fork_server, "Connection", Interrupted)
    before = forked_processes().keys()
    with (
        pytest.raises(KeyboardInterrupt) as kept,
        closing(ForkServer(worker_program())) as server,
        worker_processes(server, 2, b"", KnownReports()),
    ):
        pass
    for _ in range(100):  # a worker that the driver does not know of ends itself
        if forked_processes().keys() <= before:
            break
        threading.Event().wait(0.1)
    assert forked_processes().keys() <= before
    assert kept.tb is not None


def test_ctrl_c_during_the_imports_of_a_server_is_the_drivers() -> None:
    program = fork_server._program("import os, signal; os.kill(os.getpid(), signal.SIGINT)", "json", "print('went on')")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("went on\n", 0), done.stderr


HOLDS_THE_GIL = """
import ctypes, os, pickle, signal, sys, time
from pathlib import Path
from forebay.runtime.fork_server import ForkServer
from forebay.training.driver.local.driver import worker_program
from forebay.training.driver.local.processes import worker_processes
from forebay.training.state.known_reports import KnownReports

class Busy:
    def __reduce__(self):
        return exec, ("import ctypes, pathlib; pathlib.Path('busy').touch(); ctypes.PyDLL(None).sleep(100)",)

server = ForkServer(worker_program())
with worker_processes(server, 2, pickle.dumps(Busy()), KnownReports()) as workers:
    print(server._process.pid, *[each.pid for each in workers._members], file=open("pids", "w"), flush=True)
    while not Path("busy").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_no_process_outlives_a_killed_driver(tmp_path: Path) -> None:
    """Neither server nor workers, though a worker is in a call that holds the GIL and cannot see the driver's end.

    Nor does the folder of their rendezvous.
    """
    (tmp_path / "tmp").mkdir()
    environment = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    subprocess.run([sys.executable, "-c", HOLDS_THE_GIL], cwd=tmp_path, env=environment, check=False)
    left = {f"/proc/{pid}/status" for pid in (tmp_path / "pids").read_text().split()}
    assert len(left) == 3
    for _ in range(300):
        left = {status for status in left if Path(status).exists() and "zombie" not in Path(status).read_text()}
        if not left:
            assert not list((tmp_path / "tmp").glob("forebay-*"))
            return
        threading.Event().wait(0.1)
    pytest.fail("processes of a dead driver are still there")


def test_the_use_of_a_machine_is_recorded_and_callbacks_get_none(
    bench: DriverBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_main, "USE_EVERY_S", 0.01)
    heard: list[Event] = []
    result = run(bench.job("one", step_s=0.02), "local", [lambda event, control: heard.append(event)])
    timeline = load_timeline(result.path)
    assert timeline is not None and not any(isinstance(each, NodeUsed) for each in heard)
    (points,) = timeline.starts[0].use.values()
    assert all(0 <= each.use.memory <= 1 for each in points)
    assert not [each for each in threading.enumerate() if each.name == "forebay-use"]
