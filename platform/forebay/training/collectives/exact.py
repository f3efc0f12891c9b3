"""Gradients that are bit-equal at every world size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from forebay.data.loader.batch import Batch
from forebay.data.plan.order import Order
from forebay.errors import BadJob
from forebay.training.collectives.micro_batches import LossOf, MicroBatches
from forebay.training.collectives.tensor_collectives import TensorCollectives, padded
from forebay.training.state import rng
from forebay.world import World


class ExactReduction:
    """Gradient of a global batch from its lanes' gradients.

    The computation for a lane - shapes, rows and their order, random numbers - is then the same on any rank. Lanes are
    summed in a tree that is fixed for the run (`LaneTree`). Losses, gradients and the model are therefore bit-equal in
    every world, on devices of one kind with one number of threads. The idea of virtual workers that stay is from Li et
    al. 2022, "EasyScale", arXiv 2208.14228. Cost: each lane is a small batch of its own.

    Args:
        model: Not wrapped, on its device. It is the same on all ranks after this call.
        optimizer: Optimizer of its parameters. It refuses a step that `backward` has not prepared.
        plan: Assigns rows to lanes.
        tensors: Exchange of tensors between the ranks.
        seed: Seed of the job. Dropout draws from (seed, epoch, position, lane).
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, plan: Order, tensors: TensorCollectives, *, seed: int
    ) -> None:
        self._model, self._plan, self._tensors, self._seed = model, plan, tensors, seed
        worlds = [World(rank=rank, size=tensors.world_size) for rank in range(tensors.world_size)]
        self._owned, self._run = plan.owned_lanes(worlds[tensors.rank]), plan.owned_run(worlds[tensors.rank])
        self._nodes = [nodes_of(plan.owned_run(world), plan.lanes) for world in worlds]
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._is_ready = False
        for values in (*model.parameters(), *model.buffers()):
            tensors.broadcast(values.detach())
        optimizer.register_step_pre_hook(lambda *_: self._check_ready())
        optimizer.register_step_post_hook(lambda *_: self._used())

    def backward(self, batch: Batch, loss_of: LossOf, passes: MicroBatches | None = None) -> Tensor:
        """Add the global batch's gradient to `.grad`.

        Returns that loss, the same on all ranks.

        `loss_of` is called for each lane of this rank that has rows in the batch, once or for its `passes`. It must not
        call `backward()` itself. Raises `BadJob` for a model that changes its buffers, as batch norm does.
        """
        before = [parameter.grad for parameter in self._parameters]
        versions = self._buffer_versions()
        tree, width = LaneTree(self._plan.lanes), self._width()
        parts = dict(self._parts(batch))
        for number in self._run:
            lane = int(self._plan.owned_order[number])
            part = parts.get(lane)
            values = (
                self._lane(part, loss_of, lane, passes or MicroBatches()) if part is not None else self._empty(width)
            )
            tree.add(LaneNode(0, number), values)
        self._check_buffers(versions)
        total = self._over_ranks(tree.sums, width)
        self._put(total, before)
        self._is_ready = True
        return total[-1].clone()

    def _parts(self, batch: Batch) -> Iterator[tuple[int, Batch]]:
        """Yield the rows of each lane that has some."""
        stop = batch.position + (batch.size if batch.num_rows else 0)
        lanes = self._plan.row_lanes(batch.epoch, batch.position, stop, self._owned)
        for lane in np.unique(lanes).tolist():
            rows = np.flatnonzero(lanes == lane)
            yield lane, batch.take(rows, weight=len(rows) / batch.size)

    def _lane(self, part: Batch, loss_of: LossOf, lane: int, passes: MicroBatches) -> Tensor:
        """Pack gradients, flags and loss in one tensor.

        The flags say which gradients exist.
        """
        for parameter in self._parameters:
            parameter.grad = None
        rng.seed_everything(self._seed, part.epoch, part.position, lane)
        loss = passes.backward(part, loss_of)
        pieces = []
        for parameter in self._parameters:
            gradient = parameter.grad
            if gradient is not None and gradient.is_sparse:
                raise BadJob('reduction="exact" needs dense gradients. Build embeddings with sparse=False.')
            pieces.append(torch.zeros_like(parameter).reshape(-1) if gradient is None else gradient.reshape(-1))
        used = [parameter.grad is not None for parameter in self._parameters]
        dtype, device = self._kind()
        tail = [torch.tensor(used, dtype=dtype, device=device), loss.reshape(1).to(dtype)]
        return torch.cat([*(piece.to(dtype) for piece in pieces), *tail])

    def _over_ranks(self, sums: list[Tensor], width: int) -> Tensor:
        most = max(map(len, self._nodes))
        outgoing = [padded(values, self._tensors.world_size) for values in sums]
        outgoing += [torch.zeros_like(outgoing[0])] * (most - len(sums))
        dealt = self._tensors.all_to_all(torch.stack(outgoing))
        tree = LaneTree(self._plan.lanes)
        for rank, nodes in enumerate(self._nodes):
            for node, values in zip(nodes, dealt[rank], strict=False):
                tree.add(node, values)
        (root,) = tree.sums
        return self._tensors.all_gather(root)[:width]

    def _put(self, total: Tensor, before: list[Tensor | None]) -> None:
        count = len(self._parameters)
        is_used = total[-1 - count : -1].tolist()
        start = 0
        for parameter, used, grown in zip(self._parameters, is_used, before, strict=True):
            stop = start + parameter.numel()
            gradient = total[start:stop].view_as(parameter).to(parameter.dtype) if used else None
            parameter.grad = gradient if grown is None or gradient is None else grown.add_(gradient)
            if gradient is None:
                parameter.grad = grown
            start = stop

    def _width(self) -> int:
        return sum(parameter.numel() for parameter in self._parameters) + len(self._parameters) + 1

    def _kind(self) -> tuple[torch.dtype, torch.device]:
        dtype = torch.float32
        for parameter in self._parameters:
            dtype = torch.promote_types(dtype, parameter.dtype)
        return dtype, self._parameters[0].device

    def _empty(self, width: int) -> Tensor:
        dtype, device = self._kind()
        return torch.zeros(width, dtype=dtype, device=device)

    def _buffer_versions(self) -> dict[str, int]:
        return {name: buffer._version for name, buffer in self._model.named_buffers()}  # noqa: SLF001

    def _check_buffers(self, before: dict[str, int]) -> None:
        changed = [name for name, version in self._buffer_versions().items() if before.get(name) != version]
        if changed:
            raise BadJob(
                f'reduction="exact" computes lane by lane, but {", ".join(changed)} of the model changed meanwhile: '
                "its values would depend on the lanes of each rank. Use a norm without running statistics "
                '(LayerNorm, GroupNorm), or reduction="mean".'
            )

    def _check_ready(self) -> None:
        if not self._is_ready:
            raise BadJob(
                'reduction="exact": optimizer.step() was called with gradients of only this rank. Call '
                "worker.backward(batch, loss_of) instead of loss.backward(), or use fit()."
            )

    def _used(self) -> None:
        self._is_ready = False


@dataclass(frozen=True, slots=True, order=True)
class LaneNode:
    """Sum of 2^level lanes, from lane number * 2^level on.

    Lanes are numbered in the order in which ranks own them.
    """

    level: int
    number: int

    def reaches(self, lanes: int) -> bool:
        """Whether the last lane is within this node."""
        return (self.number + 1) << self.level >= lanes


class LaneTree:
    """Tree of sums in the order of lanes.

    Lanes 0 and 1, 2 and 3, then the sums of both pairs, and so on.

    A sum is computed as soon as both of its halves are known. So the sums of consecutive lanes are nodes of the tree
    over all `lanes`, whichever rank owns them. At most 2 log2(lanes) of them are kept. Adding the sums of all ranks in
    the order of lanes gives the tree's root.
    """

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._sums: list[tuple[LaneNode, Tensor]] = []

    def add(self, node: LaneNode, values: Tensor) -> None:
        """Add the next node's values [n].

        The tree keeps this tensor and adds to it in place.
        """
        self._sums.append((node, values))
        while self._grows():
            pass

    @property
    def sums(self) -> list[Tensor]:
        """Partial sums, one per node of `nodes_of`."""
        return [values for _, values in self._sums]

    @property
    def nodes(self) -> list[LaneNode]:
        return [node for node, _ in self._sums]

    def _grows(self) -> bool:
        node, values = self._sums[-1]
        if node.reaches(self._lanes) and node.number % 2 == 0:
            if node.number == 0:
                return False
            # The last of an odd number has no partner: it is also the sum of the level above.
            self._sums[-1] = (LaneNode(node.level + 1, node.number // 2), values)
            return True
        if len(self._sums) < 2:
            return False
        left, kept = self._sums[-2]
        if left.level != node.level or left.number % 2 or left.number + 1 != node.number:
            return False
        self._sums[-2:] = [(LaneNode(node.level + 1, left.number // 2), kept.add_(values))]
        return True


def nodes_of(owned: range, lanes: int) -> list[LaneNode]:
    """Return the nodes that these consecutive lanes make up."""
    tree = LaneTree(lanes)
    for lane in owned:
        tree.add(LaneNode(0, lane), torch.empty(0))
    return tree.nodes
