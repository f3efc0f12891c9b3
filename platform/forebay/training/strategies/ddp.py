"""Data parallel training: whole models, reduced gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from forebay.data.loader.batch import Batch
from forebay.errors import BadJob
from forebay.training.checkpoint.parts.contents import Region
from forebay.training.collectives.adasum import register_adasum
from forebay.training.collectives.collective import Collective
from forebay.training.collectives.exact import ExactReduction
from forebay.training.collectives.micro_batches import LossOf, MicroBatches
from forebay.training.state.setup import LocalParts
from forebay.training.state.stateful import Stateful
from forebay.training.strategies.clipping import clip_gradients
from forebay.training.strategies.saved_model import FrozenBase, whole_region, whole_states
from forebay.training.strategies.strategy import BuildOptimizer, StrategyOptions


class DataParallel(ABC):
    """`Strategy` of whole models.

    A subclass reduces gradients over the ranks of its backend.

    A world of one reduces nothing, and needs no backend.
    """

    is_sharded = False

    def __init__(self, collective: Collective, options: StrategyOptions) -> None:
        self._collective, self._options = collective, options
        self._optimizer: Optimizer | None = None
        self._exact: ExactReduction | None = None

    def prepare(self, model: nn.Module, optimizer: BuildOptimizer) -> tuple[nn.Module, Optimizer]:
        self._base = FrozenBase(model)
        model = model.to(self._collective.device)
        self._optimizer = optimizer(model.parameters())
        return model, self._optimizer

    def states(self, model: nn.Module, optimizer: Optimizer) -> Mapping[str, Stateful]:
        return whole_states(model, optimizer, self._base)

    def restored(self, name: str, shape: tuple[int, ...], read: Callable[[Region], Tensor]) -> Tensor:  # noqa: ARG002
        return read(whole_region(shape))

    def wrap(self, model: nn.Module) -> nn.Module:
        options = self._options
        if options.reduction == "exact":
            assert self._optimizer is not None, "prepare() comes first"
            tensors = self._collective.tensor_collectives()
            self._exact = ExactReduction(model, self._optimizer, options.plan, tensors, seed=options.seed)
            return model
        is_trained = any(parameter.requires_grad for parameter in model.parameters())
        return self.reduce_gradients(model) if self._collective.world.size > 1 and is_trained else model

    def backward(self, batch: Batch, loss_of: LossOf, passes: MicroBatches) -> Tensor:
        if self._exact is not None:
            return self._exact.backward(batch, loss_of, passes.over(batch, self._collective, ranks=1))
        return passes.over_ranks(batch, loss_of, self._collective, self._options.plan, self.accumulating)

    def local_parts(self) -> LocalParts:
        return LocalParts()

    def clip_grad_norm(self, max_norm: float) -> Tensor:
        assert self._optimizer is not None, "prepare() comes first"
        return clip_gradients(self._optimizer, max_norm)

    def close(self) -> None:  # noqa: B027 - most have nothing to release
        """Do nothing: all resources belong to the model."""

    @abstractmethod
    def reduce_gradients(self, model: nn.Module) -> nn.Module:
        """Wrap `model` to reduce gradients by mean or Adasum.

        It has trained parameters.
        """

    @abstractmethod
    def accumulating(self) -> AbstractContextManager[object]:
        """Open a block in which `backward()` reduces no gradient."""


class TorchDataParallel(DataParallel):
    """`Strategy` over the default process group of torch.distributed."""

    _wrapped: FixedBuckets | None = None

    def reduce_gradients(self, model: nn.Module) -> nn.Module:
        assert self._optimizer is not None, "prepare() comes first"
        self._optimizer.register_step_pre_hook(partial(_require_gradients, dict(model.named_parameters())))
        wrapped = self._wrapped = FixedBuckets(model)
        if self._options.reduction == "adasum":
            register_adasum(wrapped)
        return wrapped

    def accumulating(self) -> AbstractContextManager[object]:
        return nullcontext() if self._wrapped is None else self._wrapped.no_sync()

    def close(self) -> None:
        """Release the process group from the model, while others hold it.

        A `Reducer` of torch 2.13 that drops it last holds the interpreter's lock, and waits for the threads of gloo.
        One of them waits for that lock if its operation ended late: the process stood still for good.
        """
        if self._wrapped is not None:
            del self._wrapped.reducer, self._wrapped.logger
            self._wrapped = None


def _require_gradients(parameters: Mapping[str, Tensor], _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    """Check that a backward pass has reached every trained parameter.

    DDP sums no bucket that lacks a gradient. Each rank would make this step with its own, and torch tells in the next
    one, which may never come.
    """
    trained = [each.grad is not None for each in parameters.values() if each.requires_grad]
    if not all(trained) and any(trained):
        idle = [name for name, each in parameters.items() if each.requires_grad and each.grad is None]
        raise BadJob(
            f"{len(idle)} of {len(trained)} trained parameters, such as {idle[0]!r}, have no gradient in this step, "
            "and several workers need one of each parameter in each step. Use them in every loss, freeze them with "
            "requires_grad_(False), or set strategy='fsdp2'.",
            parameters=idle,
        )


class UnsplitModel(TorchDataParallel):
    """A sharded strategy in a world of one."""

    is_sharded = True


class FixedBuckets(DistributedDataParallel):
    """DDP with fixed gradient buckets.

    So a resumed run repeats the sums of the run it continues.

    Stock DDP reduces its first step in one bucket and then rebuilds the buckets in order of arrival. From three ranks
    on, a ring adds an element's parts in an order that depends on the element's place in its bucket. The first step
    after a resume would then differ from the undisturbed run in the last bits (measured with gloo: 2e-7 after 20 Adam
    steps). Here the layout is fixed at construction: parameters from last to first, roughly the order of arrival. The
    three private names (`_build_params_for_reducer`, `_push_all_rebuilt_params`, `_rebuild_buckets`) were checked on
    torch 2.13. tests/unit/training/strategies/test_ddp.py fails if they change.
    """

    def __init__(self, model: nn.Module) -> None:
        # Without device_ids: DDP would copy the batch, a dict, item by item to a device where it already is.
        super().__init__(model)
        self.reducer._push_all_rebuilt_params()  # noqa: SLF001 - no public way
        self.reducer._rebuild_buckets()  # noqa: SLF001

    def _build_params_for_reducer(self) -> tuple[list[nn.Parameter], list[bool]]:
        parameters, sparse = super()._build_params_for_reducer()  # type: ignore[no-untyped-call]
        return parameters[::-1], sparse[::-1]
