"""Fully sharded data parallel training (FSDP2).

Each rank holds a part of every parameter, gradient and moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

from forebay.data.loader.batch import Batch
from forebay.errors import BadJob
from forebay.training.checkpoint.parts.contents import Region
from forebay.training.collectives.collective import Collective
from forebay.training.collectives.micro_batches import LossOf, MicroBatches
from forebay.training.state.setup import LocalParts, local_part
from forebay.training.state.stateful import Stateful
from forebay.training.strategies.clipping import clip_gradients
from forebay.training.strategies.rank_zero_values import broadcast_values, follow_statistics
from forebay.training.strategies.saved_model import (
    FrozenBase,
    SavedModel,
    agreement,
    whole_region,
    whole_states,
    with_base,
)
from forebay.training.strategies.sharded_state import ShardedModel, ShardedOptimizer, sharded, sharded_region
from forebay.training.strategies.strategy import BuildOptimizer, StrategyOptions


class FullySharded:
    """`Strategy` of torch's `fully_shard` over the default process group.

    A world of one shards nothing.

    A unit is gathered for its forward and backward pass and freed afterwards. Units are the modules in each
    `nn.ModuleList` that have submodules, as the layers of a transformer do, and the model as a whole. Everything is
    computed in the dtype of the parameters.
    """

    is_sharded = True

    def __init__(self, collective: Collective, options: StrategyOptions) -> None:
        self._collective, self._plan = collective, options.plan
        self._mesh: DeviceMesh | None = None
        self._optimizer: Optimizer | None = None

    def prepare(self, model: nn.Module, optimizer: BuildOptimizer) -> tuple[nn.Module, Optimizer]:
        _refuse_unsplittable(model)
        self._base = FrozenBase(model)
        model = model.to(self._collective.device)
        if self._collective.world.size > 1:
            self._mesh = init_device_mesh(self._collective.device.type, (self._collective.world.size,))
            shard(model, self._mesh)
        self._optimizer = optimizer(model.parameters())
        return model, self._optimizer

    def states(self, model: nn.Module, optimizer: Optimizer) -> Mapping[str, Stateful]:
        if self._mesh is None:
            return whole_states(model, optimizer, self._base)
        saved = SavedModel(model, ShardedModel(model), local_part, agreement(self._collective))
        return with_base({"model": saved, "optimizer": ShardedOptimizer(model, optimizer)}, self._base)

    def restored(self, name: str, shape: tuple[int, ...], read: Callable[[Region], Tensor]) -> Tensor:  # noqa: ARG002
        if self._mesh is None:
            return read(whole_region(shape))
        return sharded(read(sharded_region(shape, self._mesh)).to(self._collective.device), shape, self._mesh)

    def wrap(self, model: nn.Module) -> nn.Module:
        return model  # `prepare` has sharded it in place.

    def backward(self, batch: Batch, loss_of: LossOf, passes: MicroBatches) -> Tensor:
        # Each pass reduces its gradients: kept whole until the last one, they would take the memory of the model.
        return passes.over_ranks(batch, loss_of, self._collective, self._plan)

    def local_parts(self) -> LocalParts:
        return LocalParts()

    def clip_grad_norm(self, max_norm: float) -> Tensor:
        assert self._optimizer is not None, "prepare() comes first"
        return clip_gradients(self._optimizer, max_norm)

    def close(self) -> None:
        """Do nothing: all resources belong to the model."""


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split a model over the ranks of `mesh`, in place."""
    broadcast_values(model)
    for unit in _units(model):
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    follow_statistics(model)


def _units(model: nn.Module) -> Iterator[nn.Module]:
    """Modules to gather one at a time.

    None is within another: a rank may skip an expert of a layer.
    """
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            # A module without submodules may be a table whose weight is read without calling it.
            yield from (
                each for each in child if any(True for _ in each.children()) and any(True for _ in each.parameters())
            )
        else:
            yield from _units(child)


def _refuse_unsplittable(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            raise BadJob(
                f"the parameter {name!r} is a scalar, which strategy='fsdp2' cannot split. Give it the shape [1], or "
                "set strategy='ddp'.",
                parameter=name,
            )
    for name, module in model.named_modules():
        if getattr(module, "sparse", False):
            raise BadJob(
                f"the table {name!r} has sparse gradients (sparse=True), which strategy='fsdp2' cannot reduce. Build "
                "it with sparse=False, or set strategy='ddp'.",
                module=name,
            )
