"""Complete state of a run at a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from forebay.data.plan.cursor import Cursor
from forebay.events import EpochEnded, Evaluated
from forebay.training.checkpoint.checkpoint import Checkpoint
from forebay.training.checkpoint.parts.table import whole_state
from forebay.training.state import rng
from forebay.training.state.data_progress import Span
from forebay.training.state.epoch_totals import EpochFacts
from forebay.training.state.evaluations import best_of, loaded, saved
from forebay.world import World

WHOLE = 0
"""Shard with all of a run's state, or with all but the tensors that lie in parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state that a checkpoint saves and resumes from.

    - `objects`: states of model, optimizer and other tracked objects
    - `rng`: random generators of every rank, light where a snapshot is made and whole where it was read
    - `rows`: global rows trained since the start of the run
    - `facts`: totals of the current epoch
    - `ended`: every ended epoch, in order, because a follower of the run may have missed any of them
    - `evaluations`: all of them, in order, for the same reason
    - `monitors`, `batching`: states of monitors and batch policy
    - `skipped`: rows to skip from here on
    - `statistics`: statistics that values are scaled and filled by, if any
    """

    step: int
    cursor: Cursor
    objects: Mapping[str, Any]
    rng: Sequence[Mapping[str, Any]]
    rows: int
    facts: EpochFacts
    ended: Sequence[EpochEnded]
    evaluations: Sequence[Evaluated] = ()
    monitors: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    batching: Mapping[str, Any] = field(default_factory=dict)
    skipped: tuple[Span, ...] = ()
    statistics: Mapping[str, Any] = field(default_factory=dict)

    def to_checkpoint(self, world: World) -> Checkpoint:
        """Convert to plain containers for a checkpoint.

        `torch.load(weights_only=True)` accepts them.
        """
        state = {
            "objects": dict(self.objects),
            "rng": rng.saved(self.rng),
            "rows": self.rows,
            "facts": asdict(self.facts),
            "ended": [asdict(epoch) for epoch in self.ended],
            "monitors": dict(self.monitors),
            "batching": dict(self.batching),
            "skipped": list(self.skipped),
        }
        if self.evaluations:
            state["evaluations"] = saved(self.evaluations)
        if self.statistics:
            state["statistics"] = dict(self.statistics)
        best = best_of(self.evaluations) if self.evaluations else None
        at = None if best is None else best.step
        return Checkpoint(step=self.step, cursor=self.cursor, world=world, shards={WHOLE: state}, best=at)

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Snapshot:
        """Return the snapshot from which `to_checkpoint` made this checkpoint."""
        state = whole_state(checkpoint.shards[WHOLE], checkpoint.parts)
        return cls(
            step=checkpoint.step,
            cursor=checkpoint.cursor,
            objects=state["objects"],
            rng=rng.loaded(state["rng"]),
            rows=state["rows"],
            facts=EpochFacts(**state["facts"]),
            ended=tuple(EpochEnded(**epoch) for epoch in state["ended"]),
            # Checkpoints of a run that started without these do not contain them.
            evaluations=loaded(state["evaluations"]) if "evaluations" in state else (),
            monitors=state.get("monitors", {}),
            batching=state.get("batching", {}),
            skipped=tuple(tuple(span) for span in state.get("skipped", ())),
            statistics=state.get("statistics", {}),
        )
