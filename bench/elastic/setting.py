"""What a run of the elastic bench is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ElasticSetting:
    """`scenario`: "changes" (grow, kill a worker, shrink), "node" (kill a node) or "commit" (only commits).

    `log` is the file for what happens, `folder` an empty place, `variant` of the system; a step sleeps `step_s`, the
    model is a linear layer of `width` x `width` float32, `commits` is how many a "commit" run makes.
    """

    scenario: str
    log: str
    folder: str
    variant: str = ""
    step_s: float = 0.1
    width: int = 1000
    commits: int = 8
