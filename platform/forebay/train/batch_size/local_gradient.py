"""What a rank's gradient is before ranks are averaged, and after: seen in single steps, at no cost in the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle


class LocalGradient:
    """Watches one `backward()` from within: this rank's gradient as it arrives, and `.grad` when all is done.

    Hooks on the parameters themselves see a gradient before it is accumulated, and so before any collective, DDP's or
    Horovod's, gets hold of it; hooks run only in the step after `arm`. What `.grad` holds in the end is read by a
    callback of the autograd engine, as the last thing in `backward()`: before anybody clips or unscales it.
    `queue_callback` is private, and what DDP and FSDP rest upon; checked on torch 2.13, and
    tests/unit/train/batch_size/test_local_gradient.py fails when it moves.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._hooks: list[RemovableHandle] = []
        self._squares: list[Tensor] = []
        self._then: Callable[[Tensor], None] | None = None
        self.passes = 0
        """How many `backward()` were seen since `arm`."""

    @property
    def is_armed(self) -> bool:
        return bool(self._hooks)

    def arm(self, then: Callable[[Tensor], None]) -> None:
        """At the end of the next `backward()`, call `then` with the squared norm of this rank's gradient."""
        self.disarm()
        self._then, self.passes = then, 0
        self._hooks = [
            parameter.register_hook(self._arrive)  # type: ignore[no-untyped-call]
            for parameter in self._parameters
        ]

    def disarm(self) -> None:
        """See no more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._squares, self._then = [], [], None

    def reduced(self) -> dict[int, Tensor]:
        """The gradients as they are now, by the parameter's number."""
        gradients = ((place, parameter.grad) for place, parameter in enumerate(self._parameters))
        return {place: gradient for place, gradient in gradients if gradient is not None}

    def _arrive(self, gradient: Tensor) -> None:
        if not self._squares:
            Variable._execution_engine.queue_callback(self._last_but_one)  # noqa: SLF001 - no public way
        self._squares.append(squared_norm([gradient]))

    def _last_but_one(self) -> None:
        # DDP queues its own callback when its last bucket is full, after ours: go behind it.
        Variable._execution_engine.queue_callback(self._end)  # noqa: SLF001

    def _end(self) -> None:
        self.passes += 1
        squares, self._squares = self._squares, []
        if self._then is not None:
            self._then(torch.stack(squares).sum())


def squared_norm(gradients: Iterable[Tensor]) -> Tensor:
    """Of all of them together: a scalar on their device, of float32 or finer."""
    norms = [
        torch.linalg.vector_norm(values, dtype=torch.promote_types(values.dtype, torch.float32))
        for values in (gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in gradients)
    ]
    return torch.stack(norms).square().sum()
