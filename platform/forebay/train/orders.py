"""What a run's workers are told at a commit: the only point where its length, its world and its batch may change."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """Read on rank 0 once per saved commit, shared with all ranks, and obeyed by all of them at that commit.

    `stop` says why the run shall end here. `workers` is the world size to train on with: one that differs from the
    present makes every rank part, so that a driver can start the next world at exactly this commit; with `moves` they
    part for one of the same size, too: some of it is to go on elsewhere. `global_batch` are the rows per step from the
    next batch on; None leaves it to the job.
    """

    stop: str | None = None
    workers: int | None = None
    global_batch: int | None = None
    moves: bool = False

    def parting(self, world_size: int) -> int | None:
        """The size of the world that one of `world_size` shall part for; None to train on."""
        return self.workers if self.moves or self.workers != world_size else None
