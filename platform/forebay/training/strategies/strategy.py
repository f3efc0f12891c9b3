"""Protocol of strategies: how ranks train one model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer

from forebay.data.loader.batch import Batch
from forebay.data.plan.order import Order
from forebay.errors import InvalidOption
from forebay.training.checkpoint.parts.contents import Region
from forebay.training.collectives.collective import Collective, Reduction
from forebay.training.collectives.micro_batches import LossOf, MicroBatches
from forebay.training.state.setup import LocalParts
from forebay.training.state.stateful import Stateful
from forebay.training.strategies.choice import Offload
from forebay.training.strategies.flat_part import FlatPart

BuildOptimizer: TypeAlias = Callable[..., Optimizer]
"""Function that is called with the model's parameters, e.g. `partial(torch.optim.Adam, lr=1e-3)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyOptions:
    """Facts of a run that a strategy needs.

    `reduction` combines gradients. The plan and the job's seed are for "exact". `offload` is in main memory.
    `rows_done` returns the global rows of the run before the next step.
    """

    reduction: Reduction
    plan: Order
    seed: int
    offload: Offload = "none"
    rows_done: Callable[[], int] = lambda: 0


class Strategy(Protocol):
    """Training of one model by all ranks together.

    One object per train function and process.

    Laws: `prepare`, a restore of both objects, `wrap` and then `backward` are called in this order, by all ranks alike.
    A checkpoint saves and restores `states` of the objects that `prepare` returns. Their names and shapes belong to
    the model alone: a run may continue with another strategy, as with another number of ranks. After `backward` the
    gradients are bit-equal for equal inputs, also in a process that starts in the middle of a run.
    """

    @property
    def is_sharded(self) -> bool:
        """Whether each rank holds a part of every parameter.

        In a world of one, that part is all of it.
        """
        ...

    def prepare(self, model: nn.Module, optimizer: BuildOptimizer) -> tuple[nn.Module, Optimizer]:
        """Return `model` on this rank's device, and its optimizer."""
        ...

    def states(self, model: nn.Module, optimizer: Optimizer) -> Mapping[str, Stateful]:
        """Return the saved states "model" and "optimizer".

        Tensors of which each rank holds a part are `DTensor` or `FlatPart`. Both load states with tensors as `restored`
        returns them, and states of whole tensors.
        """
        ...

    def restored(self, name: str, shape: tuple[int, ...], read: Callable[[Region], Tensor]) -> Tensor | FlatPart:
        """Return this rank's layout of saved tensor `name`.

        The saved tensor has `shape`.

        `read` returns a block, in main memory.
        """
        ...

    def local_parts(self) -> LocalParts:
        """Return this rank's parameters and reduced gradients, for monitors."""
        ...

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the module that the train function calls.

        All ranks have rank 0's parameters and buffers.

        A `backward()` through it leaves the same gradients on all ranks. With `reduction="exact"` only this strategy's
        own `backward` does.
        """
        ...

    def backward(self, batch: Batch, loss_of: LossOf, passes: MicroBatches) -> Tensor:
        """Add the global batch's gradient to `.grad`.

        Returns this rank's share of the loss, detached.

        The mean of the shares over ranks is the loss. Gradients are reduced once, with the last of the passes.
        """
        ...

    def clip_grad_norm(self, max_norm: float) -> Tensor:
        """Clip the reduced gradient to `max_norm`.

        Over all parameters that the optimizer trains.

        Returns the norm before, a scalar on this rank's device: the same on all ranks.
        """
        ...

    def close(self) -> None:
        """Release all state of this world.

        Another may follow in the same process.

        The last call.
        """
        ...


StrategyFactory: TypeAlias = Callable[[Collective, StrategyOptions], Strategy]
Strategies: TypeAlias = Mapping[str, StrategyFactory]
"""Strategies of a backend, by name."""


def build_strategy(name: str, strategies: Strategies, collective: Collective, options: StrategyOptions) -> Strategy:
    """Build strategy `name` of `strategies`.

    Raises `InvalidOption` for an unknown name.
    """
    require_strategy(name, strategies)
    return strategies[name](collective, options)


def require_strategy(name: str, strategies: Collection[str]) -> None:
    """Check that workers can train with strategy `name`.

    Raises `InvalidOption`, with the names of those they have.
    """
    if name not in strategies:
        known = ", ".join(repr(each) for each in sorted(strategies))
        raise InvalidOption(
            f"strategy={name!r} was given, but the workers of this driver can train with {known} only. Set "
            f"strategy={min(strategies)!r}, or leave it out.",
            strategy=name,
            known=sorted(strategies),
        )
