"""Exact area under the ROC curve, over the scores of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.errors import BadJob
from forebay.world import World

AllReduce = Callable[[NDArray[np.int64]], NDArray[np.int64]]

ALONE = World()

CHUNK = 1 << 16
"""Different scores that a rank sends at once. Memory of an exchange does not depend on the number of rows."""


class Scores:
    """Scores and labels of one rank's rows, by dataset.

    It keeps 6 bytes of a row, and 10 where logits are float64.
    """

    def __init__(self, num_sources: int = 1) -> None:
        self._num_kinds = 2 * num_sources
        self._scores: list[NDArray[np.floating]] = []
        self._kinds: list[NDArray[np.uint16]] = []
        self.num_nan = np.zeros(num_sources, np.int64)

    def add(self, logits: Tensor, labels: Tensor, source: Tensor | int = 0) -> None:
        """Add rows.

        `logits` are numbers of any dtype, and +-infinity has its place. `labels` are 0 or 1: anything above 0.5 is
        positive. Both have n elements. A row whose logit or label is NaN is only counted. `source` is the number of the
        dataset, of all rows or of each. Raises `BadJob` for another number of logits than labels, and for a label
        above 1 or below -1.
        """
        if logits.numel() != labels.numel():
            raise BadJob(
                f"the model returned logits of shape {tuple(logits.shape)} for labels of shape {tuple(labels.shape)}. "
                "An area needs one logit for each label: return [rows] or [rows, 1]."
            )
        flat, wanted = logits.detach().reshape(-1), labels.detach().reshape(-1)
        is_narrow = flat.dtype in (torch.float32, torch.float16, torch.bfloat16)
        numbers = (flat.float() if is_narrow else flat.double()).cpu().numpy()
        targets = wanted.double().cpu().numpy()
        if (others := targets[np.abs(targets) > 1]).size:
            raise BadJob(
                f"label {others[0]:g} is neither 0 nor 1, and an area under the ROC curve has two classes. Evaluate "
                "by a function of yours, or map the labels to 0 and 1."
            )
        number = source.cpu().numpy() if isinstance(source, Tensor) else np.full(len(numbers), source)
        kinds = (2 * number + (targets > 0.5)).astype(np.uint16)
        known = ~(np.isnan(numbers) | np.isnan(targets))
        if not known.all():
            self.num_nan += np.bincount(kinds[~known] // 2, minlength=len(self.num_nan))
            numbers, kinds = numbers[known], kinds[known]
        self._scores.append(numbers)
        self._kinds.append(kinds)

    def sorted_counts(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Different scores in order, and their rows.

        Float64 [n], and int64 [n, 2 * datasets]: negatives and positives of each dataset.
        """
        if not self._scores:
            return np.empty(0), np.zeros((0, self._num_kinds), np.int64)
        values, place = np.unique(np.concatenate(self._scores), return_inverse=True)
        cells = place * self._num_kinds + np.concatenate(self._kinds)
        counts = np.bincount(cells, minlength=len(values) * self._num_kinds)
        return values.astype(np.float64), counts.reshape(-1, self._num_kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class RocArea:
    """Area under the ROC curve, as whole numbers.

    Attributes:
        negatives: Rows with label 0 and a score.
        positives: Rows with label 1 and a score.
        won: Twice the number of pairs whose positive row has the higher score. A tie counts 1.
        num_nan: Rows whose logit or label is NaN.
    """

    negatives: int
    positives: int
    won: int
    num_nan: int

    @property
    def value(self) -> float:
        """The area, rounded once.

        NaN without rows of both labels, and with a NaN among them.
        """
        pairs = self.negatives * self.positives
        return self.won / (2 * pairs) if pairs and not self.num_nan else float("nan")


def roc_areas(scores: Scores, world: World = ALONE, all_reduce: AllReduce = np.copy) -> list[RocArea]:
    """Return the area of each dataset, then of all rows.

    All ranks call it together, and get the same. Sums of whole numbers: the result does not depend on how the rows are
    spread over ranks.
    """
    num_nan = all_reduce(scores.num_nan)
    datasets = len(num_nan) + 1
    below, above, won = [0] * datasets, [0] * datasets, [0] * datasets
    for counts in _merged(*scores.sorted_counts(), world, all_reduce):
        each = counts.reshape(len(counts), -1, 2)
        both = np.concatenate([each, each.sum(axis=1, keepdims=True)], axis=1)
        negatives, positives = both[:, :, 0], both[:, :, 1]
        before = np.cumsum(negatives, axis=0) - negatives
        here = (positives * (2 * before + negatives)).sum(axis=0)
        for number in range(datasets):  # in Python's numbers, which do not overflow
            positive = int(positives[:, number].sum())
            won[number] += int(here[number]) + 2 * below[number] * positive
            below[number] += int(negatives[:, number].sum())
            above[number] += positive
    missing = [*num_nan.tolist(), int(num_nan.sum())]
    columns = zip(below, above, won, missing, strict=True)
    return [RocArea(negatives=n, positives=p, won=w, num_nan=nan) for n, p, w, nan in columns]


def _merged(
    values: NDArray[np.float64], counts: NDArray[np.int64], world: World, all_reduce: AllReduce
) -> Iterator[NDArray[np.int64]]:
    """Yield the counts of all ranks in the order of scores.

    In parts, each with its different scores once. Every rank sends its next scores. What lies at or below the least
    of their last ones is complete.
    """
    sizes = np.zeros(world.size, np.int64)
    sizes[world.rank] = len(values)
    size = min(int(all_reduce(sizes).max()), CHUNK)
    start, goes_on = 0, size > 0
    while goes_on:
        stop = min(start + size, len(values))
        # Zeros for the other ranks: then a sum over ranks is everybody's part, bit by bit.
        sent = np.zeros((world.size, 2 + size * (1 + counts.shape[1])), np.int64)
        own, sent_rows = sent[world.rank], stop - start
        own[:2] = sent_rows, stop < len(values)
        own[2 : 2 + sent_rows] = values[start:stop].view(np.int64)
        own[2 + size :].reshape(size, -1)[:sent_rows] = counts[start:stop]
        parts = [
            (row[2 : 2 + row[0]].view(np.float64), row[2 + size :].reshape(size, -1)[: row[0]], bool(row[1]))
            for row in all_reduce(sent)
        ]
        bound = min((found[-1] for found, _, has_more in parts if has_more), default=np.inf)
        ends = [int(np.searchsorted(found, bound, side="right")) for found, _, _ in parts]
        start += ends[world.rank]
        goes_on = any(has_more for _, _, has_more in parts)
        complete = [(found[:end], rows[:end]) for (found, rows, _), end in zip(parts, ends, strict=True)]
        different, place = np.unique(np.concatenate([found for found, _ in complete]), return_inverse=True)
        merged = np.zeros((len(different), counts.shape[1]), np.int64)
        np.add.at(merged, place, np.concatenate([rows for _, rows in complete]))
        yield merged
