"""ZeRO stages 1 to 3, by DeepSpeed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from forebay.data.loader.batch import Batch
from forebay.training.checkpoint.parts.contents import Region, flat_regions
from forebay.training.collectives.collective import Collective
from forebay.training.collectives.micro_batches import LossOf, MicroBatches
from forebay.training.state.setup import LocalParts
from forebay.training.state.stateful import Stateful
from forebay.training.strategies.choice import require_package
from forebay.training.strategies.ddp import UnsplitModel
from forebay.training.strategies.flat_part import FlatPart
from forebay.training.strategies.rank_zero_values import broadcast_values, follow_statistics
from forebay.training.strategies.saved_model import (
    FrozenBase,
    SavedModel,
    agreement,
    named_tensor,
    whole_region,
    with_base,
)
from forebay.training.strategies.strategy import Strategy, StrategyFactory, StrategyOptions
from forebay.training.strategies.zero.engine import (
    ZeroStage,
    build_engine,
    engine_environment,
    forget_engine,
    lone_process_group,
)
from forebay.training.strategies.zero.fragments import ZeroFragments, held_part, held_span, is_partitioned, shape_of
from forebay.training.strategies.zero.optimizer import ZeroOptimizer
from forebay.training.strategies.zero.state import ZeroModel, ZeroOptimizerState


class ZeroSharded:
    """A stage of ZeRO, over the default process group.

    Stage 1 splits the states of the optimizer over ranks, stage 2 also the gradients, stage 3 also the parameters.
    """

    is_sharded = True

    def __init__(self, stage: int, collective: Collective, options: StrategyOptions) -> None:
        self._stage = ZeroStage(number=stage, is_offloaded=options.offload == "optimizer")
        self._collective, self._plan = collective, options.plan
        self._open = ExitStack()
        self._engine: Any = None
        self._parameters: dict[str, nn.Parameter] = {}
        self._trained: list[Tensor] = []

    def prepare(self, model: nn.Module, optimizer: Callable[..., Optimizer]) -> tuple[nn.Module, Optimizer]:
        self._open.enter_context(lone_process_group(self._collective.device))
        self._open.enter_context(engine_environment(self._collective.device))
        require_package(f"zero{self._stage.number}")
        self._base = FrozenBase(model)
        model = model.to(self._collective.device)
        broadcast_values(model)
        follow_statistics(model)
        built = ZeroOptimizer(optimizer(model.parameters()))
        self._trained = [each for group in built.param_groups for each in group["params"] if each.requires_grad]
        self._engine = build_engine(model, built.base, self._stage)
        self._open.callback(forget_engine, self._engine)
        self._fragments = ZeroFragments(self._engine, self._stage.number, self._collective.world.rank)
        self._parameters = dict(model.named_parameters())
        built.connect(self._engine.step)
        return model, built

    def states(self, model: nn.Module, optimizer: Optimizer) -> Mapping[str, Stateful]:
        assert isinstance(optimizer, ZeroOptimizer), "prepare() has made it"
        inner = ZeroModel(model, self._fragments, self._collective.world.rank)
        saved = SavedModel(model, inner, self._value, agreement(self._collective))
        return with_base(
            {"model": saved, "optimizer": ZeroOptimizerState(model, optimizer, self._fragments)}, self._base
        )

    def restored(self, name: str, shape: tuple[int, ...], read: Callable[[Region], Tensor]) -> Tensor | FlatPart:
        parameter = self._parameters.get(named_tensor(name))
        span = None if parameter is None or shape_of(parameter) != shape else self._span(parameter)
        if span is None:
            return read(whole_region(shape))
        parts = [read(region).reshape(-1) for region in flat_regions(shape, *span)]
        return FlatPart(shape=shape, start=span[0], values=torch.cat(parts) if parts else torch.empty(0, device="cpu"))

    def local_parts(self) -> LocalParts:
        return LocalParts(value=self._value, gradient=self._fragments.gradient)

    def wrap(self, model: nn.Module) -> nn.Module:  # noqa: ARG002 - the engine has it
        engine: nn.Module = self._engine
        return engine

    def backward(self, batch: Batch, loss_of: LossOf, passes: MicroBatches) -> Tensor:
        return passes.over_ranks(batch, loss_of, self._collective, self._plan, self._accumulating)

    def clip_grad_norm(self, max_norm: float) -> Tensor:
        gradients = [each for parameter in self._trained if (each := self._fragments.gradient(parameter)) is not None]
        norms = [torch.linalg.vector_norm(each, dtype=torch.float64) for each in gradients]
        square = float(torch.stack(norms).square().sum()) if norms else 0.0
        norm = torch.tensor(float(self._collective.all_reduce(np.array([square]))[0]) ** 0.5, dtype=torch.float32)
        # As `torch.nn.utils.clip_grad_norm_` does.
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0).item()
        for gradient in gradients:
            gradient.mul_(factor)
        return norm.to(self._collective.device)

    def close(self) -> None:
        self._open.close()

    @contextmanager
    def _accumulating(self) -> Iterator[None]:
        self._engine.set_gradient_accumulation_boundary(False)
        try:
            yield
        finally:
            self._engine.set_gradient_accumulation_boundary(True)

    def _span(self, parameter: nn.Parameter) -> tuple[int, int] | None:
        """Return this rank's elements of a parameter.

        None if it holds all of them.
        """
        if (fragment := self._fragments.of(parameter)) is not None:
            return fragment.start, fragment.start + fragment.size
        return held_span(parameter, self._collective.world.rank) if is_partitioned(parameter) else None

    def _value(self, parameter: Tensor) -> Tensor:
        if (fragment := self._fragments.of(parameter)) is not None:
            return fragment.of(fragment.flat)
        return held_part(parameter, self._collective.world.rank) if is_partitioned(parameter) else parameter


def zero(stage: int) -> StrategyFactory:
    """Return the factory of a stage of ZeRO.

    A world of one that offloads nothing has nothing to split.
    """

    def build(collective: Collective, options: StrategyOptions) -> Strategy:
        if collective.world.size == 1 and options.offload == "none":
            return UnsplitModel(collective, options)
        return ZeroSharded(stage, collective, options)

    return build
