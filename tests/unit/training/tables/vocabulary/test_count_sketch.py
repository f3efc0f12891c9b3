from __future__ import annotations

from collections import Counter

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay.training.tables.vocabulary.count_sketch import CountSketch, sketch_shape

CPU = torch.device("cpu")


@settings(max_examples=30, deadline=None)
@example(batches=[{-27: 90}, {-27: 90}, {-27: 76, 1: 2}, {-27: 1}])
@given(batches=st.lists(st.dictionaries(st.integers(-50, 50), st.integers(1, 90), min_size=1), max_size=6))
def test_few_ids_are_counted_exactly_up_to_255(batches: list[dict[int, int]]) -> None:
    sketch, known = CountSketch(0, 64, 640, CPU), Counter[int]()
    for batch in batches:
        wanted = [min(known[each] + count, 255) for each, count in batch.items()]
        found = sketch.add(torch.tensor(list(batch)), torch.tensor(list(batch.values())))
        assert found.tolist() == wanted
        known.update(batch)


def test_many_ids_are_never_counted_too_seldom() -> None:
    ids = torch.arange(20_000)
    sketch = CountSketch(0, 64, 6400, CPU)
    first, again = sketch.add(ids, torch.ones_like(ids)), sketch.add(ids.flip(0), torch.ones_like(ids))
    assert first.min() >= 1 and again.min() >= 2
    assert tuple(sketch.counts.shape) == sketch_shape(6400)
