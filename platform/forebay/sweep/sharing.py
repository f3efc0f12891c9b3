"""Which trials of a sweep read the same blocks, in words: what another one has stored costs a trial nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def sharing_text(blocks: Iterable[str]) -> str:
    """A line about trials; of each, what `task.blocks_of` said of its job. Empty for none.

    >>> sharing_text(["clicks-3fa1"] * 8)
    'all 8 trials share the blocks clicks-3fa1'
    >>> sharing_text(["clicks-3fa1", "clicks-3fa1", "clicks-77b2", ""])
    '2 trials share the blocks clicks-3fa1; 1 shares nothing, with a transform or a source of its own; 1 has no cache'
    """
    found = Counter(blocks)
    bare, lone = found.pop("", 0), sum(count == 1 for count in found.values())
    is_all = len(found) == 1 and not bare
    shared = [
        f"{'all ' if is_all else ''}{count} trials share the blocks {name}"
        for name, count in found.most_common()
        if count > 1
    ]
    alone = [f"{_have(lone, 'shares', 'share')} nothing, with a transform or a source of its own"] if lone else []
    without = [f"{_have(bare, 'has', 'have')} no cache"] if bare else []
    return "; ".join([*shared, *alone, *without])


def _have(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
