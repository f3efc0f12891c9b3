"""A sweep's folder in a bucket, and on storage that fills up in the middle of the sweep."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow.fs import FileSelector, FileType
from tests.ray.sweep.small_sweeps import STEPS_PER_EPOCH, SmallSweeps
from tests.soak import mounts
from tests.storage.conftest import ObjectStore, free_port, s3_store, serving
from tests.storage.conftest import forgotten as forgotten

from forebay.errors import InvalidOption, WriteFailed
from forebay.storage.filesystem import resolve
from forebay.sweep.record.record import load_record
from forebay.sweep.result import SweepResult
from forebay.sweep.run_sweep import run_sweep
from forebay.training.runs.result import load_result

pytestmark = pytest.mark.usefixtures("ray_session")

EPOCHS = 8
STEPS = EPOCHS * STEPS_PER_EPOCH
WAIT_S = 240.0


@pytest.fixture
def small(tmp_path: Path) -> SmallSweeps:
    return SmallSweeps(tmp_path)


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[ObjectStore]:
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with serving(command, port, tmp_path / "moto.log"):
        store = s3_store(port)
        resolve(store.uri("")).fs.create_dir("bucket")
        yield store


@pytest.mark.parametrize("driver", ["local", pytest.param("ray", marks=pytest.mark.variation)])
def test_sweep_in_a_bucket_is_interrupted_and_goes_on(
    small: SmallSweeps, s3: ObjectStore, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")  # set by the import of joblib
    sweep = small.sweep(
        {"key": {"grid_search": ["a", "b"]}},
        num_trials=2,
        max_concurrent=1,
        driver=driver,
        storage=s3.uri("sweeps"),
        fixed={"step_s": 0.4, "epochs": EPOCHS},
    )
    small.hasten("a")
    handler = signal.getsignal(signal.SIGINT)
    at_b = threading.Thread(
        target=lambda: until(lambda: len(small.steps("b")) >= 3) and os.kill(os.getpid(), signal.SIGINT)
    )
    at_b.start()
    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, show=False)
    at_b.join()
    assert signal.getsignal(signal.SIGINT) is handler
    cut = load_record(s3.shown("sweeps/tiny"))
    assert cut is not None and cut.stopped == "interrupted"
    assert sorted(trial.state for trial in cut.trials.values()) == ["finished", "pending"]
    assert small.steps("a") == list(range(STEPS))
    assert 3 <= len(small.steps("b")) < STEPS
    small.hasten("b")

    result = run_sweep(sweep, show=False)
    assert list(result.table["state"]) == ["finished"] * 2
    assert list(result.table["epochs"]) == [EPOCHS] * 2
    assert small.steps("a") == list(range(STEPS)), "a finished trial was trained again"
    assert small.steps("b") == list(range(STEPS)), "an unfinished trial did not go on from its last step"
    assert result.path == s3.shown("sweeps/tiny")
    read = SweepResult.load(result.path)
    assert read is not None and read.best_value == result.best_value and read.stopped is None
    assert result.best_run is not None
    best = load_result(result.best_run)
    assert best is not None and best.is_finished

    there = files(s3, "sweeps/tiny")
    page = there["sweep.html"].decode()
    assert all(trial in page for trial in result.table["trial"])
    again = run_sweep(sweep, show=False)
    assert again.best_value == result.best_value and small.steps("b") == list(range(STEPS))
    with pytest.raises(InvalidOption, match=r"was started with num_trials=2; this one has 3\."):
        run_sweep(replace(sweep, num_trials=3), show=False)
    assert {name.partition("/")[0] for name in there} == {"runs", "sweep.html", "sweep.json", "tune"}
    # As plain text, and as in the pickles that Ray Tune writes.
    secrets = {spelled for secret in s3.secrets for spelled in (secret.encode(), secret.encode().hex().encode())}
    assert [name for name, content in there.items() if any(secret in content for secret in secrets)] == []


@pytest.fixture
def small_disk(small: SmallSweeps) -> Iterator[Path]:
    """A file system of two megabytes for the folders of the sweeps."""
    folder = small.folder / "sweeps"
    try:
        mounts.mount_tmpfs(folder, 2 << 20)
    except (RuntimeError, OSError) as error:
        pytest.skip(f"nothing can be mounted here: {error}")
    yield folder
    mounts.unmount_below(folder)


@contextmanager
def filled(folder: Path, once: Callable[[], object]) -> Iterator[None]:
    """Take all free space, and all space that is freed, from the return of `once` until the end of the block."""
    over = threading.Event()
    filler = folder / "somebody-elses"

    def fill() -> None:
        until(once)
        with filler.open("wb", buffering=0) as file:
            while not over.is_set():
                try:
                    file.write(bytes(4096))
                except OSError:
                    time.sleep(0.001)

    filling = threading.Thread(target=fill)
    filling.start()
    try:
        yield
    finally:
        over.set()
        filling.join()
        filler.unlink(missing_ok=True)


def test_full_storage_is_named_and_the_sweep_goes_on_when_there_is_room(small: SmallSweeps, small_disk: Path) -> None:
    sweep = small.sweep(
        {"key": {"grid_search": ["a", "b"]}},
        num_trials=2,
        max_concurrent=1,
        fixed={"step_s": 0.4, "epochs": EPOCHS},
    )
    small.hasten("a")

    def is_under_way() -> bool:
        written = SweepResult.load(str(small_disk / "tiny"))
        return written is not None and "finished" in list(written.table["state"]) and len(small.steps("b")) >= 3

    with filled(small_disk, once=is_under_way):
        with pytest.raises(WriteFailed, match=rf"could not be written to {small_disk}/tiny .*No space left.*has room"):
            run_sweep(sweep, show=False)
        with pytest.raises(WriteFailed, match=rf"first file of the run could not be written to {small_disk}.*No space"):
            run_sweep(sweep, show=False)
    assert small.steps("a") == list(range(STEPS))
    assert 3 <= len(small.steps("b")) < STEPS
    small.hasten("b")
    read = SweepResult.load(str(small_disk / "tiny"))
    assert read is not None and "finished" in list(read.table["state"])

    result = run_sweep(sweep, show=False)
    assert list(result.table["state"]) == ["finished"] * 2
    assert list(result.table["epochs"]) == [EPOCHS] * 2
    assert small.steps("a") == list(range(STEPS)), "a finished trial was trained again"
    assert small.steps("b")[-1] == STEPS - 1 and small.steps_redone("b") <= 2, "not from its last whole commit"


def files(store: ObjectStore, path: str) -> dict[str, bytes]:
    place = resolve(store.uri(path))
    found = place.fs.get_file_info(FileSelector(place.path, recursive=True))
    return {
        info.path.removeprefix(f"{place.path}/"): place.fs.open_input_file(info.path).readall()
        for info in found
        if info.type == FileType.File
    }


def until(is_so: Callable[[], object]) -> bool:
    deadline = time.monotonic() + WAIT_S
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(is_so())
