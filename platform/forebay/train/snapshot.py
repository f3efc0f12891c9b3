"""The whole state of a run at a commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from forebay.plan.cursor import Cursor
from forebay.train.account import Facts
from forebay.train.commits import Commit
from forebay.train.events import EpochEnded
from forebay.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a worker puts into a commit, and goes on from.

    `objects` holds the state of model, optimizer and whatever else is tracked; `rng` the random generators of every
    rank; `rows` the global rows trained since the run began; `facts` the account of the epoch that is under way;
    `ended` every epoch that has ended, in order: whoever follows the run may have missed any of them.
    """

    step: int
    cursor: Cursor
    objects: Mapping[str, Any]
    rng: Sequence[Mapping[str, Any]]
    rows: int
    facts: Facts
    ended: Sequence[EpochEnded]

    def to_commit(self, world: World) -> Commit:
        """As plain containers, which `torch.load(weights_only=True)` accepts."""
        state = {
            "objects": dict(self.objects),
            "rng": list(self.rng),
            "rows": self.rows,
            "facts": asdict(self.facts),
            "ended": [asdict(epoch) for epoch in self.ended],
        }
        return Commit(step=self.step, cursor=self.cursor, world=world, state=state)

    @classmethod
    def from_commit(cls, commit: Commit) -> Snapshot:
        """What `to_commit` made."""
        state = commit.state
        return cls(
            step=commit.step,
            cursor=commit.cursor,
            objects=state["objects"],
            rng=state["rng"],
            rows=state["rows"],
            facts=Facts(**state["facts"]),
            ended=tuple(EpochEnded(**epoch) for epoch in state["ended"]),
        )
