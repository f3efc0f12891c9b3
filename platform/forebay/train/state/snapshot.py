"""The whole state of a run at a commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from forebay.checkpoint.checkpoint import Checkpoint
from forebay.events import EpochEnded
from forebay.plan.cursor import Cursor
from forebay.train.state.data_progress import Span
from forebay.train.state.epoch_totals import EpochFacts
from forebay.world import World

WHOLE = 0
"""The shard with all of a run's state: today's strategies hold the whole model on every rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a worker puts into a commit, and goes on from.

    `objects` holds the state of model, optimizer and whatever else is tracked; `rng` the random generators of every
    rank; `rows` the global rows trained since the run began; `facts` the account of the epoch that is under way;
    `ended` every epoch that has ended, in order: whoever follows the run may have missed any of them. `monitors` and
    `batching` are the states of what steers the run, `skipped` the rows that are passed over from here on.
    """

    step: int
    cursor: Cursor
    objects: Mapping[str, Any]
    rng: Sequence[Mapping[str, Any]]
    rows: int
    facts: EpochFacts
    ended: Sequence[EpochEnded]
    monitors: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    batching: Mapping[str, Any] = field(default_factory=dict)
    skipped: tuple[Span, ...] = ()

    def to_checkpoint(self, world: World) -> Checkpoint:
        """As plain containers, which `torch.load(weights_only=True)` accepts."""
        state = {
            "objects": dict(self.objects),
            "rng": list(self.rng),
            "rows": self.rows,
            "facts": asdict(self.facts),
            "ended": [asdict(epoch) for epoch in self.ended],
            "monitors": dict(self.monitors),
            "batching": dict(self.batching),
            "skipped": list(self.skipped),
        }
        return Checkpoint(step=self.step, cursor=self.cursor, world=world, shards={WHOLE: state})

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Snapshot:
        """What `to_checkpoint` made."""
        state = checkpoint.shards[WHOLE]
        return cls(
            step=checkpoint.step,
            cursor=checkpoint.cursor,
            objects=state["objects"],
            rng=state["rng"],
            rows=state["rows"],
            facts=EpochFacts(**state["facts"]),
            ended=tuple(EpochEnded(**epoch) for epoch in state["ended"]),
            # Commits of a run that was begun without these hold none of them.
            monitors=state.get("monitors", {}),
            batching=state.get("batching", {}),
            skipped=tuple(tuple(span) for span in state.get("skipped", ())),
        )
