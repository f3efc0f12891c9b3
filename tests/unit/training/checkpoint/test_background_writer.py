"""Checkpoints written beside training: the laws of stores, and what a kill, a full disk and little memory do."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.training.checkpoint.store_laws import CheckpointStoreLaws, checkpoint_at, newest_step

from forebay.errors import WriteFailed
from forebay.training.checkpoint import background_writer, local_store, part_buffers
from forebay.training.checkpoint.background_writer import BackgroundWriter
from forebay.training.checkpoint.checkpoint import Checkpoint, CheckpointStore, Encoder
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.files.pending import WRITING
from forebay.training.checkpoint.local_store import DirectStore, SpooledStore
from forebay.training.checkpoint.memory_keeper import _write_rest
from forebay.training.checkpoint.parts.part import LocalChunk, PartReceipt, read_region
from forebay.training.checkpoint.parts.table import TABLE, PartsTable, named, table_text
from forebay.training.checkpoint.shared_buffer import SharedBuffer, SharedBufferWriter
from forebay.training.runs.attempts.files import AttemptFiles

SIZE = 300_000
PATIENCE_S = 60.0

Open = Callable[[CheckpointConfig], "RankStores"]


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (background_writer, local_store):
        monkeypatch.setattr(module, "LEAST_BYTES", 0)


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


@pytest.fixture
def memory_ends_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.setattr(background_writer, "can_outlive", lambda: False)
    monkeypatch.setattr(local_store, "can_share", lambda: False)


@pytest.mark.usefixtures("memory_ends_with_the_process")
class TestDirectStoreAlone(TestDirectStoreBeside):
    pass


@pytest.mark.variation
@pytest.mark.usefixtures("memory_ends_with_the_process")
class TestSpooledStoreAlone(TestSpooledStoreBeside):
    pass


class RankStores:
    """Stores of all ranks of a run.

    One saves whole checkpoints. Several save a part each, and rank 0 the rest.
    """

    def __init__(self, *stores: CheckpointStore) -> None:
        self.stores, self.first = stores, stores[0]

    def save(self, step: int, large: torch.Tensor | None = None) -> None:
        large = torch.full((SIZE,), float(step)) if large is None else large
        if len(self.stores) == 1:
            self.first.save(checkpoint_at(step, large=large))
        else:
            self.seal(step, [self.part(step, rank, large) for rank in range(len(self.stores))])

    def part(self, step: int, rank: int, large: torch.Tensor) -> PartReceipt:
        size = len(large) // len(self.stores)
        chunk = LocalChunk(
            shape=tuple(large.shape), offsets=(rank * size,), values=large[rank * size : (rank + 1) * size]
        )
        return self.stores[rank].save_part(step, rank + 1, {"large": chunk})

    def seal(self, step: int, receipts: Sequence[PartReceipt]) -> None:
        state = {"large": named("large"), TABLE: table_text(receipts)}
        self.first.save(replace(checkpoint_at(step), shards={0: state}), receipts)

    def large(self, found: Checkpoint) -> torch.Tensor:
        """Tensor of a checkpoint that was found."""
        state = found.shards[0]
        if (table := PartsTable.in_state(state)) is None:
            return state["large"]
        parts = table.open(lambda facts: self.stores[-1].read_part(found.step, facts))
        return read_region(table.tensors["large"], ((0,), (SIZE,)), parts)

    def close(self) -> None:
        for store in reversed(self.stores):
            store.close()


@pytest.fixture(params=[1, 3], ids=["whole", "in_parts"])
def num_ranks(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def open_direct(num_ranks: int) -> Open:
    return lambda config: RankStores(*(DirectStore(config) for _ in range(num_ranks)))


@pytest.fixture
def open_spooled(num_ranks: int, tmp_path: Path) -> Open:
    return lambda config: RankStores(*(SpooledStore(config, str(tmp_path / "spools")) for _ in range(num_ranks)))


@pytest.fixture(params=["direct", "spooled"])
def open_store(request: pytest.FixtureRequest, open_direct: Open, open_spooled: Open) -> Open:
    return open_direct if request.param == "direct" else open_spooled


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
    with closing(open_store(config)) as ranks:
        for step in (1, 2):
            ranks.save(step, weight)
            weight += 1.0
        assert gate.arrived.wait(PATIENCE_S)
        gate.is_open.set()
        for step in (2, 1):
            found = ranks.first.newest(before=step + 1)
            assert found is not None and found.step == step
            assert torch.equal(ranks.large(found), torch.arange(float(SIZE)) + (step - 1))


def test_the_third_waits_for_the_first(config: CheckpointConfig, open_store: Open, gate: Sluice) -> None:
    with closing(open_store(config)) as ranks:
        ranks.save(1)
        ranks.save(2)
        third = threading.Thread(target=ranks.save, args=(3,))
        third.start()
        third.join(0.1)
        assert third.is_alive()
        gate.is_open.set()
        third.join(PATIENCE_S)
        assert newest_step(ranks.first) == 3


def test_the_second_waits_where_memory_is_short(
    config: CheckpointConfig, open_store: Open, gate: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (background_writer, part_buffers):
        monkeypatch.setattr(module, "available_bytes", lambda: 0.0)
    with closing(open_store(config)) as ranks:
        ranks.save(1)
        second = threading.Thread(target=ranks.save, args=(2,))
        second.start()
        second.join(0.1)
        assert second.is_alive()
        gate.is_open.set()
        second.join(PATIENCE_S)
        assert newest_step(ranks.first) == 2


def test_the_same_step_again_replaces_the_one_that_is_written(
    config: CheckpointConfig, open_direct: Open, gate: Sluice
) -> None:
    """As at the end of an epoch whose rows are all skipped."""
    with closing(open_direct(config)) as ranks:
        ranks.save(1, torch.zeros(SIZE))
        second = threading.Thread(target=ranks.save, args=(1, torch.ones(SIZE)))
        second.start()
        assert gate.arrived.wait(PATIENCE_S)
        gate.is_open.set()
        second.join(PATIENCE_S)
        found = ranks.first.newest()
        assert found is not None and torch.equal(ranks.large(found), torch.ones(SIZE))


def test_a_failed_write_is_an_error_of_the_next_call(config: CheckpointConfig, open_direct: Open, gate: Sluice) -> None:
    """Those before it are kept, and those behind it are given up."""
    gate.is_open.set()
    with closing(open_direct(config)) as ranks:
        ranks.save(1)
        ranks.first.flush()
        gate.is_open.clear()
        gate.error = OSError(errno.ENOSPC, "No space left on device")
        ranks.save(2)
        ranks.save(3)
        ranks.first.raise_failed()
        gate.is_open.set()
        with pytest.raises(WriteFailed, match=r"checkpoint of step 2 could not be written .*No space .*make room"):
            ranks.first.flush()
        gate.error = None
        assert newest_step(ranks.first) == 1
        for step in (4, 5, 6):
            ranks.save(step)
        assert newest_step(ranks.first) == 6


def test_a_failed_write_that_nobody_asks_for_is_logged(
    config: CheckpointConfig, open_direct: Open, gate: Sluice, caplog: pytest.LogCaptureFixture
) -> None:
    gate.error = OSError(errno.ENOSPC, "No space left on device")
    gate.is_open.set()
    with closing(open_direct(config)) as ranks:
        ranks.save(1)
    assert "No space left" in caplog.text


def in_child(call: Callable[[], object]) -> int:
    """Fork a process that kills itself after `call`, and return its number."""
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            call()
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(3)
    return child


def killed_with(config: CheckpointConfig, open_store: Open, steps: int, gate: Sluice) -> None:
    """Run a process that saves, and is killed while the first of its checkpoints is written."""
    # Not in the child, which has no threads of OpenMP.
    states = [torch.full((SIZE,), float(step)) for step in range(1, steps + 1)]

    def save() -> None:
        ranks = open_store(config)
        for step, large in enumerate(states, 1):
            ranks.save(step, large)
        gate.arrived.wait(PATIENCE_S)

    assert os.waitstatus_to_exitcode(os.waitpid(in_child(save), 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("steps", [1, 2])
def test_a_process_that_is_killed_loses_nothing(tmp_path: Path, steps: int, open_direct: Open, gate: Sluice) -> None:
    # What earlier attempts keep is more than a pipe holds.
    kept = frozenset(f"step-{number:09}" for number in range(1000, 6000))
    config = CheckpointConfig(uri=str(tmp_path / "checkpoints"), attempt=2, restorable=kept)
    killed_with(config, open_direct, steps, gate)
    with closing(open_direct(config)) as ranks:
        found = ranks.first.newest()
        assert found is not None and found.step == steps
        assert torch.equal(ranks.large(found), torch.full((SIZE,), float(steps)))
        CheckpointFiles(config).read(steps).verify()


def test_what_a_killed_spool_had_in_memory_is_found(tmp_path: Path, open_spooled: Open, gate: Sluice) -> None:
    config = CheckpointConfig(uri=f"{tmp_path / 'elsewhere'}/checkpoints")
    killed_with(config, open_spooled, 2, gate)
    gate.is_open.set()
    with closing(open_spooled(config)) as ranks:
        assert newest_step(ranks.first) == 2


def test_a_start_after_a_kill_may_restore_what_was_in_memory(tmp_path: Path, open_direct: Open, gate: Sluice) -> None:
    """The list of what it may restore is made once that is written."""
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    (attempts / "000001.json").write_text('{"number": 1, "token": "t", "host": "h", "time": 0.0}')
    config = CheckpointConfig(
        uri=str(tmp_path / "checkpoints"), attempt=1, own_claim=str(attempts / "000001.json"), token="t"
    )
    killed_with(config, open_direct, 1, gate)
    assert AttemptFiles(str(tmp_path)).restorable_by(2) == ("step-000000001",)


def test_a_run_that_was_taken_over_keeps_nothing_of_a_killed_process(
    tmp_path: Path, open_direct: Open, gate: Sluice
) -> None:
    taken = tmp_path / "000002.json"
    gate.is_open.set()
    with closing(open_direct(CheckpointConfig(uri=str(tmp_path / "checkpoints"), attempt=1))) as ranks:
        ranks.save(1)
    gate.is_open.clear()
    config = CheckpointConfig(uri=str(tmp_path / "checkpoints"), attempt=1, next_claim=str(taken))
    large = torch.ones(SIZE)

    def save() -> None:
        # Its own question comes before the memory is filled, so the claim is made during the write.
        open_direct(config).save(2, large)
        gate.arrived.wait(PATIENCE_S)
        taken.write_text("{}")

    os.waitpid(in_child(save), 0)
    reader = CheckpointFiles(config)
    reader.wait_until_written()
    assert reader.complete_steps() == [1]


@pytest.mark.parametrize("kills_rank_0", [False, True])
def test_a_part_outlives_its_rank(tmp_path: Path, gate: Sluice, kills_rank_0: bool) -> None:
    """Rank 1 is a process of its own, and is killed while its part is in memory. Then rank 0 is, or writes it."""
    config = CheckpointConfig(uri=str(tmp_path / "checkpoints"), attempt=1)
    large = torch.arange(float(SIZE))

    def rank_0() -> None:
        ranks = RankStores(*(DirectStore(config) for _ in range(2)))
        own = ranks.part(1, 0, large)
        reader, writer = multiprocessing.Pipe(duplex=False)

        def rank_1() -> None:
            writer.send(ranks.part(1, 1, large))
            time.sleep(PATIENCE_S)

        other = in_child(rank_1)
        ranks.seal(1, [own, reader.recv()])
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
        gate.arrived.wait(PATIENCE_S)
        if not kills_rank_0:
            gate.is_open.set()
            ranks.close()

    os.waitpid(in_child(rank_0), 0)
    ranks = RankStores(DirectStore(config))
    with closing(ranks):
        found = ranks.first.newest()
        assert found is not None and torch.equal(ranks.large(found), large)
        assert not (Path(config.uri) / WRITING).exists() or kills_rank_0


def test_a_part_whose_rank_ended_before_the_checkpoint_was_saved_is_an_error(config: CheckpointConfig) -> None:
    with closing(RankStores(DirectStore(config), DirectStore(config))) as ranks:
        ranks.save(1)
        receipts = [ranks.part(2, rank, torch.ones(SIZE)) for rank in range(2)]
        gone = replace(receipts[1], path=receipts[1].path.replace(str(os.getpid()), "0"))
        with pytest.raises(WriteFailed, match=r"part 2 of the checkpoint of step 2, .* Rank 1 has ended"):
            ranks.seal(2, [receipts[0], gone])
        with pytest.raises(WriteFailed, match="it has another part"):
            ranks.seal(2, [receipts[0], replace(receipts[1], sums=(1,))])
        assert newest_step(ranks.first) == 1


def test_a_keeper_that_ends_is_replaced(config: CheckpointConfig, open_direct: Open) -> None:
    with closing(open_direct(config)) as ranks:
        ranks.save(1)
        background = writer_of(ranks)
        first = background._keeper
        assert first is not None
        first.kill()
        first.wait()
        ranks.save(2)
        second = background._keeper
        assert second is not None and second.pid != first.pid
    assert second.poll() is not None, "it ends with the store"
    assert not (Path(config.uri) / WRITING).exists()


def test_what_a_keeper_has_written_no_other_writes_again(config: CheckpointConfig) -> None:
    """Two are there for a moment when one takes the place of the other."""
    buffer = SharedBuffer(0)
    writer = SharedBufferWriter(buffer.path)
    writer.finish(Encoder().draft(checkpoint_at(1), writer))
    for steps in ([1], []):
        assert _write_rest({**asdict(config), "restorable": None}, [os.dup(buffer.descriptor)]) == ""
        assert CheckpointFiles(config).complete_steps() == steps
        shutil.rmtree(config.uri, ignore_errors=True)


def writer_of(ranks: RankStores) -> BackgroundWriter:
    assert isinstance(ranks.first, DirectStore) and ranks.first._background is not None
    return ranks.first._background


def test_a_keeper_has_all_memory_and_stays_while_that_is_the_same(
    config: CheckpointConfig, open_direct: Open, gate: Sluice
) -> None:
    with closing(open_direct(config)) as ranks:
        ranks.save(1)
        ranks.save(2)
        gate.is_open.set()
        keeper = writer_of(ranks)._keeper
        for step in range(3, 7):
            ranks.save(step)
        assert writer_of(ranks)._keeper is keeper
        assert len(writer_of(ranks)._kept) == (2 if len(ranks.stores) == 1 else 8)


def test_old_checkpoints_leave_no_file(config: CheckpointConfig, open_direct: Open, num_ranks: int) -> None:
    with closing(open_direct(config)) as ranks:
        for step in range(1, 7):
            ranks.save(step)
    parts = [f"part-{number:05d}" for number in range(1, num_ranks + 1)] if num_ranks > 1 else ["shard-00001.pt"]
    files = sorted(["checkpoint.json", "shard-00000.pt", *parts])
    folders = sorted(Path(config.uri).iterdir())
    assert [each.name for each in folders] == [f"step-{step:09d}" for step in (4, 5, 6)]
    assert all(sorted(each.name for each in folder.iterdir()) == files for folder in folders)


def test_without_locks_the_step_waits(
    config: CheckpointConfig, open_direct: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BackgroundWriter, "_has_lock", lambda _self: False)
    with closing(open_direct(config)) as ranks:
        for step in (1, 2, 3):
            ranks.save(step)
            assert CheckpointFiles(config).complete_steps()[0] == step


def test_where_no_thread_can_begin_the_step_waits(
    config: CheckpointConfig, open_direct: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at a limit on threads, and on Python 3.12 once the program's main thread has ended."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with closing(open_direct(config)) as ranks:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            ranks.first.reserve(4 * SIZE)
            ranks.first.reserve_part(1, 4 * SIZE)
            ranks.save(1)
            assert CheckpointFiles(config).complete_steps() == [1]
        ranks.save(2)
        assert newest_step(ranks.first) == 2


def test_memory_is_made_before_the_first_checkpoint(config: CheckpointConfig, open_direct: Open) -> None:
    with closing(open_direct(config)) as ranks:
        assert isinstance(ranks.first, DirectStore)
        if len(ranks.stores) == 1:
            ranks.first.reserve(4 * SIZE)
        else:
            ranks.first.reserve_part(1, 4 * SIZE)
        ranks.save(1, torch.ones(SIZE))
        memory = writer_of(ranks)._memory if len(ranks.stores) == 1 else ranks.first._own_parts()._buffers
        sizes = [writer.capacity for _, writer in memory]
        assert sizes[0] >= 4 * SIZE and sizes[1:] in ([], [0])
        assert newest_step(ranks.first) == 1


def test_two_trainers_of_one_folder_wait_for_each_other(
    config: CheckpointConfig, open_direct: Open, gate: Sluice
) -> None:
    with closing(open_direct(config)) as ranks, closing(DirectStore(config)) as second:
        ranks.save(1)
        assert gate.arrived.wait(PATIENCE_S)
        found: list[int | None] = []
        reader = threading.Thread(target=lambda: found.append(newest_step(second)))
        reader.start()
        time.sleep(0.1)
        assert not found
        gate.is_open.set()
        reader.join(PATIENCE_S)
        assert found == [1]
