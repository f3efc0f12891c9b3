"""Held-out loss of weights that a system has left, computed in one way for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

ROWS = 8


def loss_of(model: Any, rows: Path) -> float:
    """Mean loss over the targets of the first held-out rows."""
    with np.load(rows) as arrays:
        parts = {name: torch.from_numpy(arrays[name][:ROWS]).long() for name in arrays.files}
    with torch.no_grad():
        return float(model(**parts).loss)


def losses_of(folder: Path, model: Path, rows: Path) -> dict[int, float]:
    """Loss by the number of steps, for all snapshots in `folder`, and of the model that all start from, as step 0."""
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    found = {0: loss_of(network, rows)}
    for path in sorted(folder.glob("*.npz"), key=lambda each: int(each.stem)):
        with np.load(path) as arrays:
            network.load_state_dict({name: torch.from_numpy(arrays[name]) for name in arrays.files})
        found[int(path.stem)] = loss_of(network, rows)
    return found
