"""Warm-up of a worker process."""

from __future__ import annotations


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
