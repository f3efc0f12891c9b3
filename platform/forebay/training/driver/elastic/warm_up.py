"""Warm-up of a worker process: what its first step would import, compile and allocate."""

from __future__ import annotations

from forebay.data.kernels import calls as kernels
from forebay.data.parquet import page_kernels


def make_a_step() -> None:
    """Make one step of a tiny model, so that torch sets up what it needs on first use. Load the kernels."""
    # The first step of any optimizer imports it: 1 to 3 s. Only worker processes should pay that.
    import torch._dynamo  # noqa: PLC0415

    kernels.load()
    page_kernels.load()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
