"""A rank's gradient before and after the reduction.

Only armed steps have a cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle


class LocalGradient:
    """Observer of one `backward()`.

    It sees this rank's gradient as it arrives, and `.grad` at the end.

    Hooks on the parameters themselves see a gradient before it is accumulated, and so before any collective of DDP or
    Horovod sees it. Hooks run only in the step after `arm`. A callback of the autograd engine reads the final `.grad`
    at the end of `backward()`, before it is clipped or unscaled. `queue_callback` is private, and DDP and FSDP use it.
    Checked on torch 2.13: tests/unit/training/batch_size/test_local_gradient.py fails if it changes.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._hooks: list[RemovableHandle] = []
        self._squares: list[Tensor] = []
        self._then: Callable[[Tensor], None] | None = None
        self.passes = 0
        """Number of `backward()` calls since `arm`."""

    @property
    def is_armed(self) -> bool:
        return bool(self._hooks)

    def arm(self, then: Callable[[Tensor], None]) -> None:
        """Call `then` with the squared norm of this gradient.

        At the end of the next `backward()`.
        """
        self.disarm()
        self._then, self.passes = then, 0
        self._hooks = [
            parameter.register_hook(self._arrive)  # type: ignore[no-untyped-call]
            for parameter in self._parameters
        ]

    def disarm(self) -> None:
        """Remove all hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._squares, self._then = [], [], None

    def reduced(self) -> dict[int, Tensor]:
        """Return the current gradients, by the parameter's number."""
        gradients = ((place, parameter.grad) for place, parameter in enumerate(self._parameters))
        return {place: gradient for place, gradient in gradients if gradient is not None}

    def _arrive(self, gradient: Tensor) -> None:
        if not self._squares:
            Variable._execution_engine.queue_callback(self._last_but_one)  # noqa: SLF001 - no public way
        self._squares.append(squared_norm([gradient]))

    def _last_but_one(self) -> None:
        # DDP queues its own callback when its last bucket is full, which is later. Queue this one behind it.
        Variable._execution_engine.queue_callback(self._end)  # noqa: SLF001

    def _end(self) -> None:
        self.passes += 1
        squares, self._squares = self._squares, []
        if self._then is not None:
            self._then(torch.stack(squares).sum())


def squared_norm(gradients: Iterable[Tensor]) -> Tensor:
    """Return the squared norm of all gradients.

    A scalar on their device, in float32 or finer.
    """
    norms = [
        torch.linalg.vector_norm(values, dtype=torch.promote_types(values.dtype, torch.float32))
        for values in (gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in gradients)
    ]
    return torch.stack(norms).square().sum()
