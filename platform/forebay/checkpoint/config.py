"""Where a run's commits are kept, and which of them for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forebay.errors import InvalidOption
from forebay.storage.credentials import Access, without_credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Commits in storage lie below `uri`; one gets there every `storage_every_s` seconds, from memory.

    The newest `keep_last` stay, and those whose step is a multiple of `keep_every`, for ever. Credentials within `uri`
    stay in this process; unpickling `access` grants them elsewhere. Raises `InvalidOption` for bounds that would keep
    nothing.

    `patience_s` is how long a worker waits at most for its node's memory to take a commit, which then goes straight to
    storage: the other ranks wait meanwhile, and must not take that for a hang.

    >>> CheckpointConfig(uri="runs/ctr/commits", keep_every=1000).is_kept(3000)
    True
    """

    uri: str
    keep_last: int = 2
    keep_every: int | None = None
    storage_every_s: float = 60.0
    patience_s: float = 60.0
    access: Access | None = None

    def __post_init__(self) -> None:
        if "://" in self.uri:  # what is handed around and printed tells no secrets
            object.__setattr__(self, "uri", without_credentials(self.uri))
        if self.keep_last < 1:
            raise InvalidOption(f"keep_last={self.keep_last} would keep no commit to resume from. Keep 1 or more.")
        if self.keep_every is not None and self.keep_every < 1:
            raise InvalidOption(
                f"keep_every={self.keep_every} is no number of steps. Give 1 or more, or None to keep only the newest."
            )
        if not self.storage_every_s >= 0:
            raise InvalidOption(f"storage_every_s={self.storage_every_s} is no time. Give 0 seconds or more.")

    def is_kept(self, step: int) -> bool:
        """Whether the commit of `step` stays for ever."""
        return self.keep_every is not None and step % self.keep_every == 0

    def superseded(self, sealed: Sequence[int], newest: int) -> set[int]:
        """Which of the whole commits in storage may go, now that `newest` is the last one that was saved.

        Later steps are left from a future that was given up by going back.

        >>> sorted(CheckpointConfig(uri="", keep_last=2, keep_every=10).superseded([10, 17, 18, 19, 25], newest=19))
        [17, 25]
        """
        past = sorted((step for step in sealed if step <= newest), reverse=True)
        return set(sealed) - set(past[: self.keep_last]) - {step for step in past if self.is_kept(step)}
