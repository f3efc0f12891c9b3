"""Loader as a PyTorch dataset for a `DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from forebay.bridges.equal_parts import validate_equal_parts
from forebay.data.loader.batch import Batch
from forebay.data.loader.loader import Loader
from forebay.errors import InvalidOption


class LoaderDataset(IterableDataset[Batch]):
    """Dataset whose samples are the batches of a loader.

    One iteration yields the rest of the current epoch.

    `state_dict` and `load_state_dict` make it stateful for `torchdata.stateful_dataloader.StatefulDataLoader`, for
    `torch.distributed.checkpoint` and for `accelerator.register_for_checkpointing`. The state is the same on every
    rank, and another number of ranks can continue from it.
    """

    def __init__(self, loader: Loader) -> None:
        validate_equal_parts(
            loader.plan, global_batch=loader.global_batch, last=loader.last, world_size=loader.world.size
        )
        self.loader = loader

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches from the cursor to the epoch's end.

        Raises:
            InvalidOption: In a worker process of a `DataLoader`.
        """
        worker = get_worker_info()
        if worker is not None:
            raise InvalidOption(
                f"num_workers={worker.num_workers}: each worker process would yield every batch of this rank again, "
                "and its cursor would be lost with it. Give DataLoader(dataset, batch_size=None, num_workers=0): "
                "the loader's own threads decode and gather ahead.",
                num_workers=worker.num_workers,
            )
        yield from self.loader

    def __len__(self) -> int:
        """Number of batches of a whole epoch."""
        return len(self.loader)

    def state_dict(self) -> dict[str, str | int]:
        """Cursor after the last batch that was yielded."""
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`.

        Raises `CursorMismatch` for another plan.
        """
        self.loader.load_state_dict(state_dict)


def as_dataset(loader: Loader) -> LoaderDataset:
    """Dataset over `loader`, for `torch.utils.data.DataLoader(dataset, batch_size=None)`.

    ```python
    loader = fb.Loader(plan, transform, cache, world=fb.World(rank=rank, size=size), global_batch=8192, last="drop")
    for batch in DataLoader(fb.bridges.torch.as_dataset(loader), batch_size=None): ...
    ```

    Raises:
        InvalidOption: Ranks get parts of different sizes, or `loader` is not a `Loader`.
    """
    if not isinstance(loader, Loader):
        raise InvalidOption(f"loader={loader!r:.200}: give an fb.Loader.")
    return LoaderDataset(loader)
