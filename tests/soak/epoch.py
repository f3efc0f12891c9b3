"""An epoch as a trainer sees it, and a check that it is the one that the plan promises."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
from tests.soak.case import CaseOutcome
from tests.soak.dataset import SoakSetting, row_of

import forebay as fb
from forebay.data.plan.order import order_digest
from forebay.errors import ForebayError
from forebay.runtime.metrics import Counters

OnStep = Callable[[int], object]
"""Called with the number of the global step, before it is taken."""


@dataclass
class Seen:
    """Batches of all ranks in one epoch: (position, size, arrays of each rank) for each global batch."""

    steps: list[tuple[int, int, list[dict[str, np.ndarray]]]] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)


def epoch(setting: SoakSetting, on_step: OnStep = lambda step: None, *, ranks: int | None = None) -> Seen:
    """Run one epoch of all ranks in step, each with its own loader. Raises the errors of the loaders."""
    seen, size = Seen(), ranks or setting.ranks
    with ExitStack() as open_loaders:
        loaders = [open_loaders.enter_context(setting.loader(rank, size, seen.counters)) for rank in range(size)]
        take_steps(setting, [iter(loader) for loader in loaders], seen, on_step)
    return seen


def take_steps(setting: SoakSetting, ranks: list, seen: Seen, on_step: OnStep = lambda step: None) -> None:
    """The rest of an epoch from one iterator per rank."""
    step = 0
    while True:
        on_step(step)
        batches = [next(rank, None) for rank in ranks]
        if batches[0] is None:
            assert batches == [None] * len(ranks), "one rank ended before another"
            return
        seen.steps.append((batches[0].position, batches[0].size, [held(batch) for batch in batches]))
        step += 1


def held(batch: fb.Batch) -> dict[str, np.ndarray]:
    """A copy of the rows of a batch that have weight."""
    rows = batch.num_rows  # a rank without rows gets one dummy row of weight 0
    return {name: np.array(array[:rows]) for name, array in batch.items()}


def check(
    setting: SoakSetting, seen: Seen, *, epoch: int | None = None, start: int = 0, ranks: int | None = None
) -> None:
    """Assert order, rows, content and digest, from position `start` to the end of the epoch."""
    number, size = setting.epoch if epoch is None else epoch, ranks or setting.ranks
    position, every_id = start, []
    for at, rows, parts in seen.steps:
        assert at == position, f"a batch at position {at}, expected {position}"
        for rank, part in enumerate(parts):
            expected = setting.ids(number, position, rank, size)
            found = part["id"].tolist()
            assert found == expected, f"rank {rank} at position {position}: {_difference(found, expected)}"
            for name, array in row_of(part["id"]).items():
                assert np.array_equal(part[name], array), f"column {name} at position {position} holds other values"
            every_id += found
        position += rows
    assert position == setting.plan.num_rows, f"the epoch ended at {position} of {setting.plan.num_rows} rows"
    if not start:
        assert sorted(every_id) == list(range(setting.plan.num_rows)), "rows were lost or repeated"
        assert _digest(setting, seen) == undisturbed_digest(setting, number), "the order digest differs"


def undisturbed_digest(setting: SoakSetting, epoch: int) -> str:
    return order_digest(setting.plan, epoch=epoch, global_batch=setting.global_batch)


def _digest(setting: SoakSetting, seen: Seen) -> str:
    """`order_digest` of the delivered batches instead of the planned ones."""
    manifest, first_ids = setting.plan.manifest, np.asarray(setting.first_ids)
    digest = hashlib.sha256()
    for _, size, parts in seen.steps:
        ids = np.sort(np.concatenate([part["id"] for part in parts]))
        block = np.searchsorted(first_ids, ids, side="right") - 1
        files, groups = np.asarray(manifest.file_of)[block], np.asarray(manifest.group_of)[block]
        digest.update(np.int64(size).astype("<i8").tobytes())
        digest.update(np.stack([files, groups, ids - first_ids[block]], axis=1).astype("<i8").tobytes())
    return digest.hexdigest()


def _difference(found: list[int], expected: list[int]) -> str:
    lost, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    return f"lost {lost[:5]}, extra {extra[:5]}" if lost or extra else "the same rows in another order"


def compare(setting: SoakSetting, run: Callable[[], Seen], *errors: type[ForebayError], names: str = "") -> CaseOutcome:
    """Run an epoch. It must be equal, or raise one of `errors` that names `names` and says what to do."""
    try:
        seen = run()
    except errors as error:
        return clear_error(error, names)
    check(setting, seen)
    return CaseOutcome("equal")


def clear_error(error: ForebayError, names: str) -> CaseOutcome:
    """Assert that an error names the object and the remedy."""
    text = str(error)
    assert names in text, f"{type(error).__name__} does not name {names!r}: {text}"
    # A message ends in a sentence that says what to do: at least two sentences.
    assert text.rstrip().endswith(".") and ". " in text, f"{type(error).__name__} names no remedy: {text}"
    return CaseOutcome("error", type(error).__name__)
