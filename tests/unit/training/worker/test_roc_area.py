"""The area is that of all pairs of rows, for any logits, and the same bits however rows are spread over ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from forebay.errors import BadJob
from forebay.training.collectives.collective import Collective
from forebay.training.worker import roc_area
from forebay.training.worker.roc_area import RocArea, Scores, roc_areas

SHAPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "plain": lambda x: x,
    "not scaled": lambda x: 20 * x + 100,
    "far below": lambda x: x - 60,
    "close together": lambda x: 1e-4 * x,
    "far and close": lambda x: 1e6 + x,
    "neighbours": lambda x: (np.float32(1e6) + np.round(3 * x) * np.spacing(np.float32(1e6))).astype(np.float32),
    "neighbours of float64": lambda x: 1.0 + np.round(3 * x) * np.spacing(1.0),
    "subnormal": lambda x: (x * 1e-44).astype(np.float32),
    "huge": lambda x: x * 1e300,
    "ties": np.round,
    "one value": np.zeros_like,
    "integers": lambda x: (1000 * x).astype(np.int64),
    "infinities": lambda x: np.where(np.abs(x) > 1, np.copysign(np.inf, x), x),
    "both zeros": lambda x: np.where(np.abs(x) < 1, np.copysign(0.0, x), x),
}


def areas_of(logits: Any, labels: Any, parts: int = 2) -> RocArea:
    scores = Scores()
    for some, wanted in zip(np.array_split(logits, parts), np.array_split(labels, parts), strict=True):
        scores.add(torch.from_numpy(some), torch.from_numpy(wanted))
    return roc_areas(scores)[-1]


def of_all_pairs(logits: np.ndarray, labels: np.ndarray) -> float:
    """The definition, in whole numbers."""
    positive, negative = logits[labels == 1][:, None], logits[labels == 0][None]
    won = 2 * int((positive > negative).sum()) + int((positive == negative).sum())
    return float(Fraction(won, 2 * positive.size * negative.size))


def rows(seed: int, number: int, rate: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = (rng.random(number) < rate).astype(np.float32)
    labels[:2] = 0, 1
    return rng.normal(size=number) + labels * rng.normal(), labels


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_share_of_all_pairs(shape: str) -> None:
    for seed in range(3):
        x, labels = rows(seed, 200)
        logits = SHAPES[shape](x)
        assert areas_of(logits, labels).value == of_all_pairs(logits, labels)


@pytest.mark.parametrize("cases", [20, pytest.param(1000, marks=pytest.mark.variation)])
def test_it_agrees_with_scikit_learn(cases: int) -> None:
    finite = [shape for name, shape in SHAPES.items() if name != "infinities"]
    for seed in range(cases):
        rng = np.random.default_rng([seed, 1])
        x, labels = rows(seed, int(rng.integers(2, 3000)), rng.choice([0.02, 0.5, 0.9]))
        logits = finite[seed % len(finite)](x)
        assert areas_of(logits, labels).value == pytest.approx(roc_auc_score(labels, logits), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_dtype_and_columns(dtype: torch.dtype) -> None:
    scores = Scores()
    logits = torch.randn(300, 1).to(dtype)
    labels = torch.randint(2, (300,), dtype=torch.bool)
    scores.add(logits, labels)
    assert roc_areas(scores)[-1].value == of_all_pairs(logits.double().numpy()[:, 0], labels.numpy())


def test_a_missing_class_and_no_rows_are_nan() -> None:
    for labels in (np.ones(4), np.zeros(4), np.empty(0)):
        assert np.isnan(areas_of(np.arange(len(labels), dtype=float), labels).value)


def test_nan_is_counted_and_never_given_a_place() -> None:
    found = areas_of(np.array([0.0, np.nan, 1.0, 2.0]), np.array([0, 1, 1, np.nan]))
    assert (found.num_nan, found.negatives, found.positives) == (2, 1, 1)
    assert np.isnan(found.value)


@pytest.mark.parametrize("shape", [(4, 2), (3,), ()])
def test_another_number_of_logits_than_labels_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadJob, match="one logit for each label"):
        Scores().add(torch.zeros(shape), torch.zeros(4))


def test_labels_of_more_than_two_classes_are_refused() -> None:
    with pytest.raises(BadJob, match="label 2 is neither 0 nor 1"):
        Scores().add(torch.zeros(4), torch.tensor([0, 1, 2, float("nan")]))
    scores = Scores()
    scores.add(torch.tensor([0.1, 0.9]), torch.tensor([-1, 1]))
    assert scores.sorted_counts()[1].tolist() == [[1, 0], [0, 1]]


def on_rank(collective: Collective, cases: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], chunk: int) -> Any:
    roc_area.CHUNK = chunk
    found = []
    for logits, labels, source in cases:
        scores, own = Scores(3), slice(collective.world.rank, None, collective.world.size)
        scores.add(*(torch.from_numpy(each[own]) for each in (logits, labels, source)))
        found.append(roc_areas(scores, collective.world, collective.all_reduce))
    return found


@pytest.mark.parametrize("chunk", [1, 7, 1 << 16])
def test_any_number_of_ranks_gives_the_same_bits(ranks: Callable[..., list[Any]], chunk: int) -> None:
    """Of three datasets, the last with one row alone, so that most ranks have none of it."""
    cases = []
    for number, shape in enumerate(SHAPES.values()):
        x, labels = rows(number, 41)
        cases.append((shape(x), labels, np.array([2, *np.arange(40) % 2], np.int16)))
    first, *others = [ranks(size, on_rank, cases, chunk)[-1] for size in (1, 2, 3)]
    assert all(other == first for other in others)
    for (logits, labels, source), found in zip(cases, first, strict=True):
        assert found[-1].value == of_all_pairs(logits, labels)
        assert found[0].value == of_all_pairs(logits[source == 0], labels[source == 0])
        assert np.isnan(found[2].value)


@settings(max_examples=30)
@given(data=st.lists(st.tuples(st.floats(allow_nan=False), st.booleans()), min_size=1, max_size=30))
def test_any_floats(data: list[tuple[float, bool]]) -> None:
    logits, labels = np.array([score for score, _ in data]), np.array([label for _, label in data])
    found = areas_of(logits, labels.astype(np.int8), parts=3)
    if labels.all() or not labels.any():
        assert np.isnan(found.value)
    else:
        assert found.value == of_all_pairs(logits, labels)
