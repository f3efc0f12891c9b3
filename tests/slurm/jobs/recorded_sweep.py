"""A sweep of one trial of `recorded_ctr.py`."""

from __future__ import annotations

import recorded_ctr

import forebay as fb


def sweep(data: str, record: str, step_s: float, epochs: int, workers: int) -> fb.Sweep:
    """Sweep whose trial trains in its own process."""
    fixed = {"data": data, "record": record, "step_s": step_s, "epochs": epochs, "workers": workers}
    space = {"checkpoint_every": {"grid_search": [10]}}
    return fb.Sweep(recorded_ctr.job, space, "auc", "max", num_trials=1, fixed=fixed, driver="local")
