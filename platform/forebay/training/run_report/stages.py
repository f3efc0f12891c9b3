"""Time of an epoch by stage.

On the way from storage to the model.
"""

from __future__ import annotations

from forebay.events import EpochEnded
from forebay.runtime.formatting import seconds_text

BESIDE: dict[str, str] = {
    "read": "remote_read_s",
    "peers": "peer_s",
    "decode": "decode_s",
    "transform": "transform_s",
    "write": "write_s",
    "map": "map_s",
    "gather": "gather_s",
    "augment": "augment_s",
}
"""Stage -> counter. Data workers and loaders do this beside training, so its seconds may exceed the epoch's."""
HOLDING_UP: dict[str, str] = {"copy": "copy_s", "wait": "wait_s"}
"""Stages during which training waits."""
STAGES = BESIDE | HOLDING_UP
_RARE = ("peers", "augment")
CAPTION = "read to gather, augment: done by data workers and loaders, beside training; copy, wait: training stood still"


def stages_of(epochs: tuple[EpochEnded, ...]) -> list[str]:
    """Return the stages with a column.

    `peers` and `augment` only if they took time. Empty if nothing was counted.
    """
    if not any(epoch.counters.get(counter) for epoch in epochs for counter in STAGES.values()):
        return []
    return [
        stage
        for stage, counter in STAGES.items()
        if stage not in _RARE or any(epoch.counters.get(counter) for epoch in epochs)
    ]


def stage_s(epoch: EpochEnded, stage: str) -> float:
    """Return the seconds of a stage.

    Summed over all threads and ranks.
    """
    return float(epoch.counters.get(STAGES[stage], 0.0))


def stages_text(epoch: EpochEnded) -> str:
    """Summarize the stages of an epoch.

    `read 2.10, decode 11.8, ..., wait 3.00 s`. Empty if nothing was counted.
    """
    stages = stages_of((epoch,))
    facts = ", ".join(f"{stage} {seconds_text(stage_s(epoch, stage))}" for stage in stages)
    return f"{facts} s" if facts else ""
