"""Sharded training through the worker, with checkpoints in parts: over worlds, strategies, and damaged parts."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from forebay.data.loader.data import Data
from forebay.errors import BadJob
from forebay.testing.drivers.sharded_suite import damage_part
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.files.names import part_file
from forebay.training.collectives.collective import Collective, SingleProcessCollective
from forebay.training.monitors.nan_guard import NanGuard
from forebay.training.state.snapshot import WHOLE, Snapshot
from forebay.training.strategies.choice import INSTALL
from forebay.training.strategies.flat_part import FlatPart
from forebay.training.strategies.sharded_state import ShardedModel, split_shards
from forebay.training.strategies.strategy import StrategyOptions, build_strategy
from forebay.training.strategies.torch_strategies import TORCH_STRATEGIES
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker

Ranks = Callable[..., list[Any]]
CLOSE = 1e-5


class Layer(nn.Module):
    """Unit of a `ModuleList`, with an uneven number of rows and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(7, 7)
        self.norm = nn.LayerNorm(7)
        self.register_buffer("scale", torch.full((7,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.norm(self.inner(x))) * self.scale


class ShardedTower(nn.Module):
    """Two units, parameters with fewer rows than ranks, a frozen one, and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 7)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.last = nn.Linear(7, 1)
        self.frozen = nn.Parameter(torch.ones(5, 2), requires_grad=False)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        x = self.first(batch["x"])
        for layer in self.layers:
            x = layer(x)
        return self.last(x).squeeze(1) * self.frozen.mean()


def trained(
    collective: Collective, data: Data, folder: Path, recorder: Any, strategy: str, stop_at: int | None = None
) -> dict[str, Any]:
    """Train on this rank, to the end or to the `stop_at`-th checkpoint. Returns the losses of its steps.

    `strategy` may name what it offloads: "zero3-optimizer".
    """
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    store = DirectoryStore(folder, keep_last=3)
    name, _, offload = strategy.partition("-")
    spec = TrainSpec(
        data=data, epochs=4, checkpoint_every=2, monitors=(NanGuard(),), strategy=name, offload=offload or "none"
    )
    losses, norms = dict[int, float](), dict[int, float]()
    sizes: dict[str, Any] = {}

    def train(worker: Worker) -> None:
        model, optimizer = worker.setup(ShardedTower(), partial(torch.optim.AdamW, lr=0.01))
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.95**step)
        worker.track(scheduler=scheduler)
        sizes["parameters"] = sum(
            (parameter.to_local() if hasattr(parameter, "to_local") else parameter).numel()
            for parameter in model.parameters()
        )
        sizes["from"] = worker.step
        for batch in worker.loader():
            loss = worker.backward(
                batch, lambda part: nn.functional.binary_cross_entropy_with_logits(model(part), part["label"])
            )
            norms[worker.step] = float(worker.clip_grad_norm(0.5))
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            losses[worker.step] = float(loss)
            worker.commit(loss=loss)

    Worker(spec, collective, None, store, recorder(stop_at=stop_at)).run(train)
    # ZeRO-3 replaces it. Ranks of which some had it left came to wrong gradients under ZeRO-2.
    assert nn.functional.linear is torch._C._nn.linear
    return {"losses": losses, "norms": norms, **sizes}


def model_of(folder: Path) -> dict[str, Any]:
    found = DirectoryStore(folder).newest()
    assert found is not None
    return Snapshot.from_checkpoint(found).objects["model"]


def difference(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    assert left.keys() == right.keys()
    return max(float((left[name].double() - right[name].double()).abs().max()) for name in left)


@pytest.fixture
def data(make_data: Callable[..., Data]) -> Data:
    return make_data()


needs_deepspeed = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason=INSTALL)


def strategies(*unmarked: str) -> pytest.MarkDecorator:
    """Cases of a law for all sharded strategies, of which `unmarked` run in `make test`."""
    names = ("fsdp2", "zero1", "zero2", "zero3", "zero1-optimizer", "zero2-optimizer", "zero3-optimizer")
    marks = {name: [] if name in unmarked else [pytest.mark.variation] for name in names}
    cases = [pytest.param(each, marks=[*own, *([needs_deepspeed] * (each != "fsdp2"))]) for each, own in marks.items()]
    return pytest.mark.parametrize("strategy", cases)


@strategies("fsdp2", "zero3")
def test_other_worlds_and_strategies_continue_from_parts(
    ranks: Ranks, data: Data, tmp_path: Path, make_recorder: Any, strategy: str
) -> None:
    """2 ranks, then 1, then 3, then 2 with ddp: each continues from the checkpoint of the one before it."""
    straight = ranks(2, trained, data, tmp_path / "straight", make_recorder, "ddp")
    before = 0
    parts = (2, strategy, 2), (1, strategy, 2), (3, strategy, 2), (2, "ddp", 1), (2, strategy, None)
    for size, name, stop_at in parts:
        answers = ranks(size, trained, data, tmp_path / "moved", make_recorder, name, stop_at)
        assert [answer["from"] for answer in answers] == [before] * size
        before = max(answers[0]["losses"]) + 1
        assert len(straight[0]["norms"]) >= 20
        for answer in answers:
            assert answer["norms"] == pytest.approx({at: straight[0]["norms"][at] for at in answer["norms"]}, abs=CLOSE)
    assert difference(model_of(tmp_path / "moved"), model_of(tmp_path / "straight")) < CLOSE


def test_tied_weight_is_written_once() -> None:
    tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    tied[1].weight = tied[0].weight
    state = ShardedModel(tied).state_dict()
    assert list(state) == ["0.weight", "1.weight"] and state["0.weight"] is state["1.weight"]
    part = FlatPart(shape=(4,), start=0, values=torch.ones(4))
    rest, chunks = split_shards({"model": {"a": part, "b": part}})
    assert list(chunks) == ["model.a"]
    assert rest["model"]["b"] == rest["model"]["a"]


@strategies("fsdp2")
def test_damaged_parts_are_never_restored_and_the_same_world_repeats_every_bit(
    ranks: Ranks, data: Data, tmp_path: Path, make_recorder: Any, strategy: str
) -> None:
    """The newest checkpoint lacks a part, that before it has a flipped bit: the run continues from the third."""
    folder = tmp_path / "damaged"
    straight = ranks(2, trained, data, tmp_path / "straight", make_recorder, strategy)
    stopped = ranks(2, trained, data, folder, make_recorder, strategy, 4)
    newest, middle, oldest = (step for step in CheckpointFiles(CheckpointConfig(uri=str(folder))).complete_steps())
    assert newest == max(stopped[0]["losses"]) + 1
    damage_part(folder / f"step-{newest:09d}" / part_file(1), is_missing=True)
    damage_part(folder / f"step-{middle:09d}" / part_file(2))
    again = ranks(2, trained, data, folder, make_recorder, strategy)
    for before, after in zip(straight, again, strict=True):
        assert after["from"] == oldest
        assert after["losses"] == {step: loss for step, loss in before["losses"].items() if step >= oldest}
    assert difference(model_of(folder), model_of(tmp_path / "straight")) == 0.0


def test_world_of_one_shards_nothing_and_saves_one_shard(data: Data, tmp_path: Path, make_recorder: Any) -> None:
    alone = trained(SingleProcessCollective(), data, tmp_path / "fsdp2", make_recorder, "fsdp2")
    plain = trained(SingleProcessCollective(), data, tmp_path / "ddp", make_recorder, "ddp")
    assert alone == plain
    found = DirectoryStore(tmp_path / "fsdp2").newest()
    assert found is not None
    assert set(found.shards[WHOLE]["objects"]["optimizer"]["state"]) == set(range(1, 13)), (
        "by number, without the frozen one"
    )
    assert not found.parts


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (nn.Sequential(nn.Embedding(3, 2, sparse=True)), "'0' has sparse gradients"),
        (nn.ParameterDict({"bias": torch.tensor(0.0)}), "'bias' is a scalar"),
    ],
)
def test_model_that_fsdp2_cannot_split_is_refused_before_anything_is_built(
    data: Data, model: nn.Module, text: str
) -> None:
    strategy = build_strategy("fsdp2", TORCH_STRATEGIES, SingleProcessCollective(), options_of(data))
    with pytest.raises(BadJob, match=text):
        strategy.prepare(model, torch.optim.SGD)


@needs_deepspeed
def test_zero_refuses_an_optimizer_that_may_look_at_shapes(data: Data, ranks: Ranks) -> None:
    class Shaped(torch.optim.Optimizer):
        """An optimizer of unknown behaviour."""

    def refused(collective: Collective) -> str:
        strategy = build_strategy("zero2", TORCH_STRATEGIES, collective, options_of(data))
        with pytest.raises(BadJob) as refusal:
            strategy.prepare(nn.Linear(1, 1), lambda parameters: Shaped(parameters, {}))
        strategy.close()
        return str(refusal.value)

    assert all("cannot split the optimizer Shaped" in text and "SGD, Adam" in text for text in ranks(2, refused))


def options_of(data: Data) -> StrategyOptions:
    return StrategyOptions(reduction="mean", plan=data.plan, seed=0)
