"""Data parallel training over Horovod.

Gradients are averaged within `backward()`, or combined by Adasum. Fixed buckets make equal inputs give equal sums, to
the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from forebay.errors import BadJob
from forebay.training.collectives.adasum import adasum
from forebay.training.driver.horovod.collective import HorovodCollective
from forebay.training.strategies.ddp import DataParallel
from forebay.training.strategies.strategy import Strategies

BUCKET_BYTES = 25 << 20

Reduce = Callable[[torch.Tensor, Sequence[int], str], Callable[[], torch.Tensor]]
"""Begins to reduce a flat tensor. Arguments: tensors laid end to end, their lengths, a name that is equal on all ranks.

Returns a function that waits for the result. The last of the tensors must be summed over ranks, however the others are
reduced. All ranks wait for results in the same order.
"""


class ReducedGradients:
    """Hooks that average gradients over ranks.

    When `backward()` returns, all ranks have the same gradients of `parameters`. A bucket is sent as soon as its last
    gradient is there, while `backward()` goes on. The buckets are fixed here, in reverse order of the parameters, which
    is roughly the order of arrival. Horovod's own tensor fusion packs tensors in the order in which they happen to
    arrive. From three ranks on, a ring's sum depends on the position in the buffer.

    A parameter that no rank has used keeps the gradient it had. A parameter that only some ranks have used gets the
    mean, also one that they have used in a pass that accumulates.

    Every gradient is multiplied by `scale` before it is reduced.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], reduce: Reduce, *, scale: float, name: str) -> None:
        self._buckets = [
            _Bucket(members, reduce, scale=scale, name=f"{name}.{number}")
            for number, members in enumerate(_partition(list(parameters)[::-1]))
        ]
        self._is_queued = False
        self._is_paused = False
        for bucket in self._buckets:
            for number, parameter in enumerate(bucket.parameters):
                parameter.register_post_accumulate_grad_hook(self._hook(bucket, number))  # type: ignore[no-untyped-call]

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Keep each rank's own gradients in the block.

        The next `backward()` behind it reduces the sums.
        """
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def _hook(self, bucket: _Bucket, number: int) -> Callable[[torch.Tensor], None]:
        def arrived(_parameter: torch.Tensor) -> None:
            if self._is_paused:
                bucket.note(number)
                return
            if not self._is_queued:
                self._is_queued = True
                # The engine calls it at the end of this backward(). DDP ends its own the same way.
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)  # noqa: SLF001
            bucket.take(number)

        return arrived

    def _finish(self) -> None:
        self._is_queued = False
        for bucket in self._buckets:
            bucket.send_rest()
        for bucket in self._buckets:
            bucket.hand_out()


class _Bucket:
    """Gradients of some parameters, end to end.

    Behind them, for each: the number of ranks that have one.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], reduce: Reduce, *, scale: float, name: str) -> None:
        self.parameters = parameters
        self._reduce, self._scale, self._name = reduce, scale, name
        self._lengths = [*(parameter.numel() for parameter in parameters), len(parameters)]
        first = parameters[0]
        # Horovod knows no bfloat16.
        kind = torch.float32 if first.dtype is torch.bfloat16 else first.dtype
        self._flat = torch.zeros(sum(self._lengths), dtype=kind, device=first.device)
        *self._parts, self._used = torch.split(self._flat, self._lengths)
        self._here = [False] * len(parameters)
        self._is_used = [False] * len(parameters)
        self._result: Callable[[], torch.Tensor] | None = None

    def note(self, number: int) -> None:
        """Note that this rank has used parameter `number` since the last reduction."""
        self._is_used[number] = True

    def take(self, number: int) -> None:
        """Copy the gradient of parameter `number` into the bucket.

        Sends the bucket when it is full.
        """
        gradient = self.parameters[number].grad
        assert gradient is not None, "the hook comes after the gradient"
        if gradient.is_sparse:
            raise BadJob(
                "a gradient is sparse, which driver='horovod' does not average. Give the embedding sparse=False, or "
                "use driver='ray'."
            )
        if self._here[number] or self._result is not None:
            raise BadJob(
                "a parameter got its gradient twice in one backward(), as reentrant checkpointing does. Use "
                "torch.utils.checkpoint with use_reentrant=False."
            )
        self._here[number] = True
        self.note(number)
        torch.mul(gradient.reshape(-1), self._scale, out=self._parts[number])
        if all(self._here):
            self._send()

    def send_rest(self) -> None:
        """Send a bucket that is not full.

        Another rank may have used its parameters, and waits for this one. A gradient of an earlier `backward()` is in
        the sum that the other rank sends, so this rank sends it as well.
        """
        if self._result is None:
            for parameter, part, is_here in zip(self.parameters, self._parts, self._here, strict=True):
                if is_here:
                    continue
                if parameter.grad is None:
                    part.zero_()
                else:
                    torch.mul(parameter.grad.reshape(-1), self._scale, out=part)
            self._send()

    def hand_out(self) -> None:
        """Copy the reduced gradients back to the parameters.

        Waits for the other ranks.
        """
        assert self._result is not None, "send_rest() comes first"
        *parts, used = torch.split(self._result(), self._lengths)
        for parameter, part, is_here in zip(self.parameters, parts, self._here, strict=True):
            if is_here:
                assert parameter.grad is not None, "it was sent"
                parameter.grad.copy_(part.view_as(parameter.grad))
        if not all(self._here):
            self._hand_out_unused(parts, used.tolist())
        self._here = [False] * len(self.parameters)
        self._is_used = [False] * len(self.parameters)
        self._result = None

    def _hand_out_unused(self, parts: Sequence[torch.Tensor], used: Sequence[float]) -> None:
        for parameter, part, is_here, uses in zip(self.parameters, parts, self._here, used, strict=True):
            if is_here or uses == 0:
                continue
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(part.view_as(parameter))

    def _send(self) -> None:
        self._used.copy_(torch.tensor(self._is_used, dtype=self._used.dtype))
        self._result = self._reduce(self._flat, self._lengths, self._name)


def _partition(parameters: Sequence[nn.Parameter]) -> Iterable[list[nn.Parameter]]:
    """Buckets of at most `BUCKET_BYTES`.

    Parameters of one dtype and device, in their order.
    """
    open_buckets: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        kind = (parameter.dtype, parameter.device)
        bucket = open_buckets.setdefault(kind, [])
        filled = sum(other.nbytes for other in bucket)
        if bucket and filled + parameter.nbytes > BUCKET_BYTES:
            yield bucket
            bucket = open_buckets[kind] = []
        bucket.append(parameter)
    yield from open_buckets.values()


class HorovodDataParallel(DataParallel):
    """`Strategy` over Horovod's global process set."""

    _gradients: ReducedGradients | None = None

    def reduce_gradients(self, model: nn.Module) -> nn.Module:
        collective = self._collective
        assert isinstance(collective, HorovodCollective), "many ranks of this driver speak Horovod"
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        reduce, scale = self._reducer(collective)
        name = collective.next_model_name()
        collective.broadcast_tensors([*model.parameters(), *model.buffers()], f"{name}.state")
        self._gradients = ReducedGradients(trained, reduce, scale=scale, name=f"{name}.gradients")
        if any(True for _ in model.buffers()):

            def broadcast_statistics(module: nn.Module, _inputs: Any) -> None:
                # Only when all ranks compute the same: a rank may evaluate more often than the others.
                if module.training and torch.is_grad_enabled():
                    collective.broadcast_tensors(module.buffers(), f"{name}.buffers")

            # Statistics that ranks collect, such as those of batch norm, follow rank 0, as under DDP.
            model.register_forward_pre_hook(broadcast_statistics)
        return model

    def accumulating(self) -> AbstractContextManager[object]:
        return nullcontext() if self._gradients is None else self._gradients.accumulating()

    def _reducer(self, collective: HorovodCollective) -> tuple[Reduce, float]:
        """Return the reduction of a flat tensor, and its factor.

        The tensor is multiplied by the factor before.
        """

        def mean(flat: torch.Tensor, _lengths: Sequence[int], name: str) -> Callable[[], torch.Tensor]:
            return collective.all_reduce_async(flat, name)

        def adaptive(flat: torch.Tensor, lengths: Sequence[int], _name: str) -> Callable[[], torch.Tensor]:
            def wait() -> torch.Tensor:
                gradients, used = torch.split(flat, [sum(lengths[:-1]), lengths[-1]])
                tensors = collective.tensor_collectives()
                return torch.cat([adasum(gradients, lengths[:-1], tensors), tensors.all_reduce(used)])

            return wait

        # Not Horovod's own Adasum: it needs MPI, and world sizes that are a power of two.
        return (adaptive, 1.0) if self._options.reduction == "adasum" else (mean, 1 / collective.world.size)


HOROVOD_STRATEGIES: Strategies = {"ddp": HorovodDataParallel}
