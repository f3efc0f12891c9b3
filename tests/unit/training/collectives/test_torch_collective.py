"""Ranks in their own processes, over gloo."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from forebay.data.loader.data import Data
from forebay.events import EpochEnded
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.collectives.collective import Collective, SingleProcessCollective
from forebay.training.collectives.torch_collective import (
    BOX_BYTES,
    TorchCollective,
    backend_of,
    is_timeout,
    process_group,
    set_nccl_defaults,
)
from forebay.training.worker.evaluation import evaluate_auc
from forebay.training.worker.fit import fit
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker

Ranks = Callable[..., list[Any]]


def build_model(dropout: float = 0.0) -> nn.Module:
    """Model whose layers are registered in another order than they run, which matters for bucket layouts."""

    class UnevenModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(32, 1)
            self.first = nn.Linear(3, 32)
            self.middle = nn.Linear(32, 32)
            self.dropout = nn.Dropout(dropout)

        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            hidden = torch.relu(self.first(batch["x"]))
            hidden = self.dropout(torch.relu(self.middle(hidden)))
            return self.last(hidden).squeeze(1)

    return UnevenModel()


def flat(tensors: Any) -> np.ndarray:
    return torch.cat([tensor.detach().double().reshape(-1) for tensor in tensors]).numpy()


def collectives(collective: Collective) -> dict[str, Any]:
    rank = collective.world.rank
    counts = np.array([[rank, 1], [2**60, rank]], dtype=np.int64)
    return {
        "sum": collective.all_reduce(counts),
        "float": collective.all_reduce(np.array([0.1 * rank])),
        "gather": collective.combine({"rank": rank, "blob": "x" * 1000 * rank}, list),
        "large": [collective.combine("x" * size * rank, list) for size in (1000, BOX_BYTES, 10, 3000, BOX_BYTES)],
        "share": collective.broadcast_object(("from", rank) if rank == 0 else None),
        "nothing": collective.broadcast_object(None),
        "unchanged": counts[0].tolist() == [rank, 1],
    }


def collectives_without_warnings(collective: Collective) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return collectives(collective)


def collectives_of_another_default_device(collective: Collective) -> dict[str, Any]:
    with torch.device("meta"):  # as after torch.set_default_device("cuda")
        return collectives(collective)


def test_what_ranks_exchange_has_no_default_device(ranks: Ranks) -> None:
    for answer in ranks(2, collectives_of_another_default_device):
        assert answer["gather"] == [{"rank": rank, "blob": "x" * 1000 * rank} for rank in range(2)]


def test_torch_has_nothing_to_warn_of(ranks: Ranks) -> None:
    assert ranks(1, collectives_without_warnings)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_laws_of_a_collective(ranks: Ranks, size: int) -> None:
    answers = ranks(size, collectives)
    if size == 1:
        answers.append(collectives(SingleProcessCollective()))
    total = sum(range(size))
    for answer in answers:
        assert answer["sum"].dtype == np.int64
        assert answer["sum"].tolist() == [[total, size], [size * 2**60, total]]
        assert answer["float"][0] == pytest.approx(0.1 * total)
        assert [len(each["blob"]) for each in answer["gather"]] == [1000 * rank for rank in range(size)]
        for length, values in zip((1000, BOX_BYTES, 10, 3000, BOX_BYTES), answer["large"], strict=True):
            assert [len(each) for each in values] == [length * rank for rank in range(size)]
        assert (answer["share"], answer["nothing"], answer["unchanged"]) == (("from", 0), None, True)


def gradients(collective: Collective, data: Data, folder: Path, recorder: Any) -> dict[str, Any]:
    """The averaged gradient of every step of one epoch on fixed parameters, and this rank's batches."""
    worker = Worker(TrainSpec(data=data), collective, None, DirectoryStore(folder), recorder)
    steps: list[np.ndarray] = []
    weights: list[float] = []

    def train(worker: Worker) -> None:
        model, optimizer = worker.setup(build_model().double(), partial(torch.optim.SGD, lr=0.0))
        for batch in worker.loader():
            batch["x"] = batch["x"].double()
            loss = nn.functional.binary_cross_entropy_with_logits(model(batch), batch["label"].double()) * batch.weight
            loss.backward()
            steps.append(flat(parameter.grad for parameter in model.parameters()))
            weights.append(batch.weight)
            optimizer.zero_grad()
            worker.commit(loss=loss)

    worker.run(train)
    return {"gradients": steps, "weights": weights, "ended": recorder.of(EpochEnded)}


@pytest.mark.parametrize("rows", [(13, 1, 20, 9), (2,), (1, 16)])
def test_gradients_do_not_depend_on_the_world(
    ranks: Ranks, make_data: Callable[..., Data], make_recorder: type, tmp_path: Path, rows: tuple[int, ...]
) -> None:
    # With fewer rows than lanes in the last or only batch, some rank has a dummy row of weight 0.
    data = make_data(rows=rows, global_batch=4)
    alone = gradients(SingleProcessCollective(), data, tmp_path / "1", make_recorder())
    dummies = 0
    for size in (2, 3):
        answers = ranks(size, gradients, data, tmp_path / str(size), make_recorder())
        for answer in answers:
            assert len(answer["gradients"]) == len(alone["gradients"])
            for found, expected in zip(answer["gradients"], alone["gradients"], strict=True):
                np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
            dummies += answer["weights"].count(0.0)
        assert np.abs(alone["gradients"][0]).max() > 1e-3
        (ended,), (expected_ended,) = answers[0]["ended"], alone["ended"]
        assert ended.metrics["loss"] == pytest.approx(expected_ended.metrics["loss"], abs=1e-12)
        assert ended.rows == expected_ended.rows == sum(rows)
        assert ended.counters["rows"] >= sum(rows)
        assert not any(answer["ended"] for answer in answers[1:])
    assert (dummies > 0) == (rows != (13, 1, 20, 9))


def train_once(
    collective: Collective, train_spec: TrainSpec, folder: Path, recorder: Any, die_at: int | None
) -> dict[str, Any]:
    """Train until `die_at` steps are done, or to the end. Returns everything that must be equal after a resume."""
    seen: dict[int, list[int]] = {}
    losses: dict[int, float] = {}
    last: dict[str, np.ndarray] = {}

    def train(worker: Worker) -> None:
        model, optimizer = worker.setup(build_model(dropout=0.3), partial(torch.optim.Adam, lr=0.05))
        for batch in worker.loader():
            if worker.step == die_at:
                return
            seen[worker.step] = batch["id"].tolist()
            loss = nn.functional.binary_cross_entropy_with_logits(model(batch), batch["label"]) * batch.weight
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[worker.step] = loss.item()
            worker.commit(loss=loss)
        last["parameters"] = flat(model.parameters())

    worker = Worker(train_spec, collective, None, DirectoryStore(folder), recorder)
    worker.run(train)
    return {"seen": seen, "losses": losses, "draw": torch.rand(4).tolist(), "ended": recorder.of(EpochEnded), **last}


@pytest.mark.parametrize("size", [2, 3])
def test_a_resumed_run_equals_the_undisturbed_one_bit_for_bit(
    ranks: Ranks, make_data: Callable[..., Data], make_recorder: type, tmp_path: Path, size: int
) -> None:
    train_spec = TrainSpec(data=make_data(rows=(61, 1, 40, 9)), epochs=2, seed=5, checkpoint_every=4)
    undisturbed = ranks(size, train_once, train_spec, tmp_path / "undisturbed", make_recorder(), None)
    first = ranks(size, train_once, train_spec, tmp_path / "resumed", make_recorder(), 7)
    second = ranks(size, train_once, train_spec, tmp_path / "resumed", make_recorder(), None)
    assert min(second[0]["seen"]) == 4
    for before, after, whole in zip(first, second, undisturbed, strict=True):
        assert before["seen"] | after["seen"] == whole["seen"]
        assert before["losses"] | after["losses"] == whole["losses"]
        assert after["draw"] == whole["draw"]
        assert np.array_equal(after["parameters"], whole["parameters"])
    assert undisturbed[0]["draw"] != undisturbed[1]["draw"], "ranks must not drop out the same units"
    assert np.array_equal(undisturbed[0]["parameters"], undisturbed[1]["parameters"])
    for one, other in zip(second[0]["ended"], undisturbed[0]["ended"], strict=True):
        assert (one.step, one.rows, one.counters["rows"]) == (other.step, other.rows, other.counters["rows"])
        assert one.metrics["loss"] == pytest.approx(other.metrics["loss"], rel=1e-12)


def test_another_world_goes_on_with_the_same_batches(
    ranks: Ranks, make_data: Callable[..., Data], make_recorder: type, tmp_path: Path
) -> None:
    train_spec = TrainSpec(data=make_data(), epochs=2, seed=5, checkpoint_every=2)
    whole = train_once(SingleProcessCollective(), train_spec, tmp_path / "whole", make_recorder(), None)["seen"]
    parts = [
        ranks(2, train_once, train_spec, tmp_path / "changing", make_recorder(), 4),
        ranks(3, train_once, train_spec, tmp_path / "changing", make_recorder(), 8),
        [train_once(SingleProcessCollective(), train_spec, tmp_path / "changing", make_recorder(), None)],
    ]
    seen = {
        step: sorted(row for rank in part for row in rank["seen"][step]) for part in parts for step in part[0]["seen"]
    }
    assert seen == {step: sorted(rows) for step, rows in whole.items()}


def fit_once(collective: Collective, train_spec: TrainSpec, folder: Path, recorder: Any) -> Any:
    worker = Worker(train_spec, collective, None, DirectoryStore(folder), recorder)
    criterion = nn.BCEWithLogitsLoss()

    def train(worker: Worker) -> None:
        fit(worker, build_model(), partial(torch.optim.Adam, lr=0.01), criterion, evaluate_auc)

    worker.run(train)
    return recorder.of(EpochEnded)


def test_fit_gives_one_auc_at_every_world_size(
    ranks: Ranks, make_data: Callable[..., Data], make_recorder: type, tmp_path: Path
) -> None:
    data = make_data(rows=(70, 30, 50, 3), global_batch=16)
    # Batches of 8 or 9 rows for 16 lanes: the last of three ranks gets dummy rows, which must not be counted.
    held_out = make_data(rows=(9, 8), folder="held_out", lanes=16, global_batch=16)
    train_spec = TrainSpec(data=data, held_out=held_out, epochs=2, seed=1)
    alone = fit_once(SingleProcessCollective(), train_spec, tmp_path / "alone", make_recorder())
    assert [event.metrics["auc"] for event in alone] != [0.5, 0.5]
    for size in (2, 3):
        events = ranks(size, fit_once, train_spec, tmp_path / str(size), make_recorder())[0]
        for found, expected in zip(events, alone, strict=True):
            assert found.metrics["auc"] == pytest.approx(expected.metrics["auc"], abs=1e-3)
            assert found.metrics["loss"] == pytest.approx(expected.metrics["loss"], abs=1e-5)


def meet_at(collective: TorchCollective, meeting: Path) -> float:
    """Meet again at the file `meeting`. Returns the sum over ranks of 1."""
    dist.destroy_process_group()
    with process_group(collective.world, meeting, timeout_s=30) as again:
        found = float(again.all_reduce(np.ones(1))[0])
    # The process that is still there at the end.
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return found


def test_ranks_meet_in_a_folder_of_any_name(ranks: Ranks, tmp_path: Path) -> None:
    """TMPDIR names it. torch does not decode the URL of a file, and waited for another folder."""
    folder = tmp_path / "of ümit #1?a=b%20c"
    folder.mkdir()
    assert ranks(2, meet_at, folder / "meeting") == [2.0, 2.0]


def meet_late(collective: TorchCollective, folder: Path) -> str:
    """Meet again, rank 1 two seconds after rank 0. Rank 1 then leaves out the next collective of rank 0."""
    world, is_over = collective.world, folder / "over"
    dist.destroy_process_group()
    time.sleep(2.0 * world.rank)
    raised = ""
    with process_group(world, folder / "meeting", timeout_s=0.5) as late:
        assert late.all_reduce(np.ones(1))[0] == world.size
        if world.is_first:
            try:
                late.all_reduce(np.ones(1))
            except RuntimeError as error:
                raised = str(error)
            is_over.touch()
        while not is_over.exists():
            time.sleep(0.01)
    # The process that is still there at the end.
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return raised


def test_ranks_wait_for_one_that_starts_late_and_not_for_one_that_hangs(ranks: Ranks, tmp_path: Path) -> None:
    assert is_timeout(RuntimeError(ranks(2, meet_late, tmp_path)[0]))


@pytest.mark.parametrize(
    ("said", "is_known"),
    [
        ("[unbound_buffer.cc:129] Timed out waiting 2000ms for send operation to complete", True),
        ("Application timeout caused pair closure", True),
        ("[pair.cc:534] Connection closed by peer [127.0.0.1]:4711", False),
        # ProcessGroupNCCL and NCCLUtils of torch 2.13.
        (
            "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7) ran for 2001 milliseconds",
            True,
        ),
        ("[Rank 0] Work WorkNCCL(SeqNum=7, OpType=ALLREDUCE) timed out in blocking wait.", True),
        ("NCCL communicator was aborted on rank 1. ", True),
        (
            "[1] is setting up NCCL communicator, but store->get('0') got error: wait timeout after 120000ms, keys: /0",
            True,
        ),
        ("NCCL error in: NCCLUtils.cpp:77, remote process exited or there was a network error", False),
        ("NCCL error in: NCCLUtils.cpp:77, invalid usage. Duplicate GPU detected : rank 1 and rank 0", False),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", False),
    ],
)
def test_errors_of_a_collective_that_timed_out_are_known(said: str, is_known: bool) -> None:
    assert is_timeout(RuntimeError(said)) is is_known


@pytest.mark.parametrize(("limit_s", "heartbeat_s"), [(0.5, 480), (120.0, 480), (1000.0, 3000)])
def test_a_hang_raises_before_nccl_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, limit_s: float, heartbeat_s: int
) -> None:
    variables = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    monkeypatch.setattr(os, "environ", variables)
    set_nccl_defaults(limit_s)
    assert variables == {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",  # the user's own
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(heartbeat_s),
    }


def test_what_ranks_say_on_the_host_never_goes_over_nccl() -> None:
    assert (backend_of("cpu"), backend_of("cuda")) == ("gloo", "cpu:gloo,cuda:nccl")
