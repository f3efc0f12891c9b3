"""The optimizer that a train function gets under ZeRO.

Its groups have the parameters of the model.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import optim
from torch.optim import Optimizer

from forebay.errors import BadJob

ELEMENTWISE = (
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.Adamax,
    optim.NAdam,
    optim.RAdam,
    optim.RMSprop,
    optim.Rprop,
    optim.ASGD,
    optim.Adagrad,
    optim.Adadelta,
)
"""Optimizers that treat each element of a parameter alike, wherever it lies."""


class ZeroOptimizer(Optimizer):
    """Optimizer whose `step` is DeepSpeed's.

    `base`, the optimizer that the train function built, steps on flat tensors of many parameters. Its groups follow the
    groups here, which hooks, schedulers and the train function see and change.
    """

    def __init__(self, base: Optimizer) -> None:
        if not isinstance(base, ELEMENTWISE):
            raise BadJob(
                f"strategy='zero*' cannot split the optimizer {type(base).__name__}: it may depend on the shapes of "
                "parameters, which DeepSpeed flattens. Use one of "
                f"{', '.join(each.__name__ for each in ELEMENTWISE)}, or strategy='fsdp2'.",
                optimizer=type(base).__name__,
            )
        super().__init__([dict(group) for group in base.param_groups], dict(base.defaults))
        self.base = base
        self._take_step: Callable[[], object] | None = None
        for group in base.param_groups:
            group["params"] = [parameter for parameter in group["params"] if parameter.requires_grad]
        self._trained = [number for number, group in enumerate(base.param_groups) if group["params"]]
        base.param_groups[:] = [group for group in base.param_groups if group["params"]]

    def connect(self, take_step: Callable[[], object]) -> None:
        """Make `take_step` the step of this optimizer."""
        self._take_step = take_step

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step with the reduced gradients, and clear them."""
        if closure is not None:
            raise BadJob(
                "optimizer.step(closure) was called, and a step of ZeRO takes gradients that are reduced already: the "
                "closure would compute others. Call worker.backward and optimizer.step(), or use strategy='ddp'."
            )
        assert self._take_step is not None, "connect() comes first"
        self.update_base()
        self._take_step()

    def update_base(self) -> None:
        """Give the base optimizer the hyperparameters of this one."""
        for number, other in zip(self._trained, self.base.param_groups, strict=True):
            other.update({key: value for key, value in self.param_groups[number].items() if key != "params"})
