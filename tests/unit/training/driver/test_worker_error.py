"""Any exception of a train function arrives with its traceback."""

from __future__ import annotations

import errno
import pickle
import threading
from typing import cast

import numpy as np
import pytest
import torch

from forebay.errors import ExitCode, ForebayError, NullLabel, RunFailed, WriteFailed
from forebay.training.driver.driver import run
from forebay.training.driver.worker_error import WorkerError
from forebay.training.job.job import Job
from forebay.training.runs.result import Result


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class TwoArguments(Exception):
    """Can be pickled, but not built again from its `args`."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


def caught(error: BaseException) -> WorkerError:
    def train_function() -> None:
        raise error

    try:
        train_function()
    except BaseException as again:  # noqa: BLE001 - that is what is tested
        return pickle.loads(pickle.dumps(WorkerError.of(again, rank=1)))  # type: ignore[no-any-return]
    raise AssertionError


def test_exception_is_the_cause_of_a_failed_run() -> None:
    error = caught(ValueError("boom")).as_error("ctr")
    assert isinstance(error, RunFailed)
    assert isinstance(error.__cause__, ValueError)
    assert "raised ValueError: boom on rank 1" in str(error)
    assert "in train_function\n    raise error" in str(error)
    assert "run 'ctr' again" in str(error)
    assert (error.name, error.rank, error.summary) == ("ctr", 1, "ValueError: boom on rank 1")


@pytest.mark.parametrize(
    ("shortage", "remedy"),
    [
        (MemoryError(), "Give the processes more memory"),
        (np._core._exceptions._ArrayMemoryError((1 << 40,), np.dtype("i8")), "Give the processes more memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "Give the processes more memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "Give the processes more memory"),
        (RuntimeError("can't start new thread"), "Allow more threads"),
    ],
)
def test_a_process_without_memory_or_threads_says_what_to_do(shortage: Exception, remedy: str) -> None:
    error = caught(shortage).as_error("ctr")
    assert isinstance(error, RunFailed) and type(shortage).__name__ in str(error)
    assert remedy in str(error) and "Correct the function" not in str(error)

    class Named(Job):
        name, storage = "ctr", "runs"

        def __init__(self) -> None:
            """Has no data: its driver ends first."""

    class Short:
        def run(self, *_: object) -> Result:
            raise shortage

    with pytest.raises(RunFailed, match=rf"the driver of run 'ctr' ended with .*{remedy}"):
        run(cast("Job", Named()), Short())


def test_a_full_disk_is_the_machine_s_fault_and_tried_again() -> None:
    error = caught(OSError(errno.ENOSPC, "No space left on device", "/tmp/words.bin")).as_error("ctr")
    assert isinstance(error, WriteFailed) and error.exit_status == ExitCode.MACHINE
    assert "a disk of the machine of rank 1 is full" in str(error) and "/tmp/words.bin" in str(error)
    assert isinstance(error.__cause__, OSError)


def test_forebay_error_arrives_as_itself() -> None:
    error = caught(NullLabel("column 'clicked' has 3 nulls", column="clicked")).as_error("ctr")
    assert isinstance(error, NullLabel)
    assert error.column == "clicked"
    assert "in train_function" in str(error.__cause__)


def test_what_cannot_be_pickled_still_shows_its_traceback() -> None:
    for exception in (Unpicklable(), TwoArguments(7, "lost")):
        error = caught(exception).as_error("ctr")
        assert isinstance(error, ForebayError)
        assert type(exception).__name__ in str(error)
        assert "in train_function" in str(error)


def test_system_exit_is_told_apart_from_an_end() -> None:
    assert "SystemExit: 3" in str(caught(SystemExit(3)).as_error("ctr"))
