"""Warm-up of a worker process, without the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_gc() -> Iterator[None]:
    """Pause the garbage collector during the block.

    Exempts all objects that exist at its end from later collections. For imports: in a worker they make a million
    objects, which all stay. Looking for garbage among them takes 15 to 30 % of the CPU time of a worker's start, and
    0.1 s of each full collection later.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def make_a_step() -> None:
    """Train a tiny model for one step, and load the kernels.

    So torch sets up what it needs on first use.
    """
    # The first step of any optimizer imports it: 1 to 3 s. Only worker processes should pay that.
    import torch._dynamo  # noqa: PLC0415

    from forebay.data.parquet import page_kernels  # noqa: PLC0415 - this module is imported before all others

    page_kernels.load()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
