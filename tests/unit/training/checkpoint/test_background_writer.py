"""Checkpoints written beside training: the laws of stores, and what a kill, a full disk and little memory do."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.training.checkpoint.store_laws import CheckpointStoreLaws, checkpoint_at, newest_step

from forebay.errors import WriteFailed
from forebay.training.checkpoint import background_writer, local_store
from forebay.training.checkpoint.background_writer import BackgroundWriter
from forebay.training.checkpoint.checkpoint import CheckpointStore
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.files.pending import WRITING
from forebay.training.checkpoint.local_store import DirectStore, SpooledStore
from forebay.training.runs.attempts.files import AttemptFiles

SIZE = 300_000
PATIENCE_S = 60.0

Open = Callable[[CheckpointConfig], CheckpointStore]


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_store, "LEAST_BYTES", 0)


class TestDirectStoreBeside(CheckpointStoreLaws):
    @pytest.fixture
    def config(self, tmp_path: Path) -> CheckpointConfig:
        return CheckpointConfig(uri=str(tmp_path / "checkpoints"), keep_every=5)

    def open(self, config: CheckpointConfig) -> CheckpointStore:
        return DirectStore(config)


class TestSpooledStoreBeside(CheckpointStoreLaws):
    @pytest.fixture
    def config(self, tmp_path: Path) -> CheckpointConfig:
        self._spools = str(tmp_path / "spools")
        return CheckpointConfig(uri=f"memory://{uuid.uuid4().hex}/checkpoints", keep_every=5)

    def open(self, config: CheckpointConfig) -> CheckpointStore:
        return SpooledStore(config, self._spools)


@pytest.fixture(params=["direct", "spooled"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "direct":
        return DirectStore
    return lambda config: SpooledStore(config, str(tmp_path / "spools"))


@pytest.fixture
def config(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointConfig:
    is_direct = "spooled" not in request.node.name
    uri = str(tmp_path / "checkpoints") if is_direct else f"memory://{uuid.uuid4().hex}/checkpoints"
    return CheckpointConfig(uri=uri, keep_last=3)


class Sluice:
    """Holds up all writes to local folders, until it is open."""

    def __init__(self) -> None:
        self.is_open, self.arrived = threading.Event(), threading.Event()
        self.error: OSError | None = None

    def write(self, files: CheckpointFiles, path: str, contents: Any, original: Callable[..., None]) -> None:
        if files.is_local and path.endswith(".pt"):
            self.arrived.set()
            assert self.is_open.wait(PATIENCE_S)
            if self.error is not None:
                raise self.error
        original(files, path, contents)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sluice]:
    gate, original = Sluice(), CheckpointFiles._write
    monkeypatch.setattr(CheckpointFiles, "_write", lambda *args: gate.write(*args, original))
    yield gate
    gate.is_open.set()


def test_a_step_goes_on_before_the_write_and_cannot_change_what_is_written(
    config: CheckpointConfig, open_store: Open, gate: Sluice
) -> None:
    """Two checkpoints in short succession, and the parameter changes in place right after each."""
    weight = torch.arange(float(SIZE))
    with closing(open_store(config)) as store:
        for step in (1, 2):
            store.save(checkpoint_at(step, large=weight))
            weight += 1.0
        assert gate.arrived.wait(PATIENCE_S)
        gate.is_open.set()
        for step in (2, 1):
            found = store.newest(before=step + 1)
            assert found is not None and found.step == step
            assert torch.equal(found.shards[0]["large"], torch.arange(float(SIZE)) + (step - 1))


def test_the_third_waits_for_the_first(config: CheckpointConfig, open_store: Open, gate: Sluice) -> None:
    with closing(open_store(config)) as store:
        store.save(checkpoint_at(1))
        store.save(checkpoint_at(2))
        third = threading.Thread(target=store.save, args=(checkpoint_at(3),))
        third.start()
        third.join(0.1)
        assert third.is_alive()
        gate.is_open.set()
        third.join(PATIENCE_S)
        assert newest_step(store) == 3


def test_the_second_waits_where_memory_is_short(
    config: CheckpointConfig, open_store: Open, gate: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_writer, "available_bytes", lambda: 0.0)
    with closing(open_store(config)) as store:
        store.save(checkpoint_at(1))
        second = threading.Thread(target=store.save, args=(checkpoint_at(2),))
        second.start()
        second.join(0.1)
        assert second.is_alive()
        gate.is_open.set()
        second.join(PATIENCE_S)
        assert newest_step(store) == 2


def test_a_failed_write_is_an_error_of_the_next_call(config: CheckpointConfig, gate: Sluice) -> None:
    """Those before it are kept, and those behind it are given up."""
    gate.is_open.set()
    with closing(DirectStore(config)) as store:
        store.save(checkpoint_at(1))
        store.flush()
        gate.is_open.clear()
        gate.error = OSError(errno.ENOSPC, "No space left on device")
        store.save(checkpoint_at(2))
        store.save(checkpoint_at(3))
        store.raise_failed()
        gate.is_open.set()
        with pytest.raises(WriteFailed, match=r"checkpoint of step 2 could not be written .*No space .*make room"):
            store.flush()
        gate.error = None
        assert newest_step(store) == 1
        store.save(checkpoint_at(4))
        assert newest_step(store) == 4


def test_a_failed_write_that_nobody_asks_for_is_logged(
    config: CheckpointConfig, gate: Sluice, caplog: pytest.LogCaptureFixture
) -> None:
    gate.error = OSError(errno.ENOSPC, "No space left on device")
    gate.is_open.set()
    with closing(DirectStore(config)) as store:
        store.save(checkpoint_at(1))
    assert "No space left" in caplog.text


def killed_with(config: CheckpointConfig, open_store: Open, steps: int, gate: Sluice) -> None:
    """Run a process that saves, and is killed while the first of its checkpoints is written."""
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            store = open_store(config)
            for step in range(1, steps + 1):
                store.save(checkpoint_at(step, large=torch.full((SIZE,), float(step))))
            gate.arrived.wait(PATIENCE_S)
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("steps", [1, 2])
def test_a_process_that_is_killed_loses_nothing(tmp_path: Path, steps: int, gate: Sluice) -> None:
    config = CheckpointConfig(uri=str(tmp_path / "checkpoints"), attempt=1)
    killed_with(config, DirectStore, steps, gate)
    with closing(DirectStore(config)) as store:
        found = store.newest()
        assert found is not None and found.step == steps
        assert torch.equal(found.shards[0]["large"], torch.full((SIZE,), float(steps)))
        CheckpointFiles(config).read(steps).verify()


def test_what_a_killed_spool_had_in_memory_is_found(tmp_path: Path, gate: Sluice) -> None:
    def open_spooled(config: CheckpointConfig) -> CheckpointStore:
        return SpooledStore(config, str(tmp_path / "spools"))

    fake = tmp_path / "elsewhere"
    config = CheckpointConfig(uri=f"{fake}/checkpoints")
    killed_with(config, open_spooled, 2, gate)
    gate.is_open.set()
    with closing(open_spooled(config)) as store:
        assert newest_step(store) == 2


def test_a_start_after_a_kill_may_restore_what_was_in_memory(tmp_path: Path, gate: Sluice) -> None:
    """The list of what it may restore is made once that is written."""
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    (attempts / "000001.json").write_text('{"number": 1, "token": "t", "host": "h", "time": 0.0}')
    config = CheckpointConfig(
        uri=str(tmp_path / "checkpoints"), attempt=1, own_claim=str(attempts / "000001.json"), token="t"
    )
    killed_with(config, DirectStore, 1, gate)
    assert AttemptFiles(str(tmp_path)).restorable_by(2) == ("step-000000001",)


def test_a_run_that_was_taken_over_keeps_nothing_of_a_killed_process(tmp_path: Path, gate: Sluice) -> None:
    taken = tmp_path / "000002.json"
    taken.write_text("{}")
    gate.is_open.set()
    with closing(DirectStore(CheckpointConfig(uri=str(tmp_path / "checkpoints"), attempt=1))) as store:
        store.save(checkpoint_at(1))
    gate.is_open.clear()
    config = CheckpointConfig(uri=str(tmp_path / "checkpoints"), attempt=1, next_claim=str(taken))
    # Its own question comes before the memory is filled, so the claim is made during the write.
    taken.unlink()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            store = DirectStore(config)
            store.save(checkpoint_at(2))
            gate.arrived.wait(PATIENCE_S)
            taken.write_text("{}")
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(3)
    os.waitpid(child, 0)
    reader = CheckpointFiles(config)
    reader.wait_until_written()
    assert reader.complete_steps() == [1]


def test_a_keeper_that_ends_is_replaced(config: CheckpointConfig) -> None:
    with closing(DirectStore(config)) as store:
        store.save(checkpoint_at(1))
        assert store._background is not None
        first = store._background._keeper
        assert first is not None
        first.kill()
        first.wait()
        store.save(checkpoint_at(2))
        second = store._background._keeper
        assert second is not None and second.pid != first.pid
    assert second.poll() is not None, "it ends with the store"
    assert not (Path(config.uri) / WRITING).exists()


def test_without_locks_the_step_waits(config: CheckpointConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackgroundWriter, "_has_lock", lambda _self: False)
    with closing(DirectStore(config)) as store:
        store.save(checkpoint_at(1))
        assert CheckpointFiles(config).complete_steps() == [1]


def test_where_no_thread_can_begin_the_step_waits(config: CheckpointConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at a limit on threads, and on Python 3.12 once the program's main thread has ended."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with closing(DirectStore(config)) as store:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            store.reserve(4 * SIZE)
            store.save(checkpoint_at(1))
            assert CheckpointFiles(config).complete_steps() == [1]
        store.save(checkpoint_at(2))
        assert newest_step(store) == 2


def test_memory_is_made_before_the_first_checkpoint(config: CheckpointConfig) -> None:
    with closing(DirectStore(config)) as store:
        store.reserve(4 * SIZE)
        store.save(checkpoint_at(1, large=torch.ones(SIZE)))
        assert store._background is not None
        sizes = [writer.capacity for _, writer in store._background._memory]
        assert sizes[0] >= 4 * SIZE and sizes[1] == 0
        assert newest_step(store) == 1


def test_two_trainers_of_one_folder_wait_for_each_other(config: CheckpointConfig, gate: Sluice) -> None:
    with closing(DirectStore(config)) as first, closing(DirectStore(config)) as second:
        first.save(checkpoint_at(1))
        assert gate.arrived.wait(PATIENCE_S)
        found: list[int | None] = []
        reader = threading.Thread(target=lambda: found.append(newest_step(second)))
        reader.start()
        time.sleep(0.1)
        assert not found
        gate.is_open.set()
        reader.join(PATIENCE_S)
        assert found == [1]
