"""Options of a run's checkpoints.

They say to which storage they are written, and how long each is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forebay.errors import InvalidOption
from forebay.storage.credentials import Access, without_credentials

FOLDER = "checkpoints"
"""Folder of the checkpoints in the folder of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Options of a run's checkpoints in storage, below `uri`.

    One is uploaded every `storage_every_s` seconds.

    Storage keeps the newest `keep_last`, and permanently those whose step is a multiple of `keep_every`. Credentials
    within `uri` stay in this process; unpickling `access` grants them elsewhere. Raises `InvalidOption` for bounds that
    would keep nothing.

    A worker waits at most `store_timeout_s` seconds for its node's memory to take a checkpoint. Then it writes the
    checkpoint to storage itself: the other ranks wait meanwhile, and must not take that for a hang.

    `attempt` is the number of the run's attempt that saves. None for a store that no attempts share. Checkpoints are
    ordered by attempt, then step. `next_claim` is the URI of the file that a later attempt creates: once it is there,
    this attempt keeps nothing more. `own_claim` is the URI of its own file and `token` what it must hold: without it,
    nothing is written or restored. `restorable` has the names of the folders of earlier attempts that were complete
    when this one was claimed: nothing else of theirs is restored. None if that is not known. A reader, which has no
    attempt, gives the number of the newest one as `claimed`, with what that one may restore.

    >>> CheckpointConfig(uri="runs/ctr/checkpoints", keep_every=1000).is_permanent(3000)
    True
    """

    uri: str
    keep_last: int = 2
    keep_every: int | None = None
    storage_every_s: float = 60.0
    store_timeout_s: float = 60.0
    access: Access | None = None
    attempt: int | None = None
    next_claim: str | None = None
    own_claim: str | None = None
    token: str = ""
    restorable: frozenset[str] | None = None
    claimed: int = 1

    def __post_init__(self) -> None:
        if "://" in self.uri:  # Texts that are passed on and printed must not contain secrets.
            object.__setattr__(self, "uri", without_credentials(self.uri))
        if self.keep_last < 1:
            raise InvalidOption(f"keep_last={self.keep_last} would keep no checkpoint to resume from. Keep 1 or more.")
        if self.keep_every is not None and self.keep_every < 1:
            raise InvalidOption(
                f"keep_every={self.keep_every} is not a number of steps. Give 1 or more, or None to keep only the "
                "newest."
            )
        if not self.storage_every_s >= 0:
            raise InvalidOption(f"storage_every_s={self.storage_every_s} is not a time. Give 0 seconds or more.")

    def is_permanent(self, step: int) -> bool:
        """Whether the checkpoint of `step` is never deleted."""
        return self.keep_every is not None and step % self.keep_every == 0

    def superseded(self, complete: Sequence[int], newest: int, best: int | None = None) -> set[int]:
        """Complete steps that may be deleted once `newest` is written.

        They are the steps of checkpoints in storage. The one of the step `best` is kept.

        This includes later steps: they belong to a future that the run abandoned by going back.

        >>> sorted(CheckpointConfig(uri="", keep_last=2, keep_every=10).superseded([10, 17, 18, 19, 25], newest=19))
        [17, 25]
        """
        past = sorted((step for step in complete if step <= newest), reverse=True)
        kept = {step for step in past if self.is_permanent(step) or step == best}
        return set(complete) - set(past[: self.keep_last]) - kept
