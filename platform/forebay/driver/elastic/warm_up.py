"""Imported to warm a worker process up: what its first step would import, compile and allocate."""

from __future__ import annotations

import ray.train.torch  # noqa: F401
import torch
import torch._dynamo  # by the first step of any optimizer: 1 to 3 s


def make_a_step() -> None:
    """One step of a tiny model, for what torch sets up when it is first used."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
