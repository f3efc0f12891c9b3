"""Setting of one run of the elastic bench."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ElasticSetting:
    """Setting of one run.

    - `scenario`: "changes" (grow, kill a worker, shrink), "node" (kill a node) or "commit" (only commits).
    - `log`: path of the event log. `folder`: an empty folder. `variant`: variant of the system.
    - `step_s`: seconds that a step sleeps. `width`: the model is a linear layer of `width` x `width` float32.
    - `commits`: number of commits of a "commit" run.
    """

    scenario: str
    log: str
    folder: str
    variant: str = ""
    step_s: float = 0.1
    width: int = 1000
    commits: int = 8
