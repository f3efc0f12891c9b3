from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.training.tables.vocabulary.admitted_rows import IdIndex
from forebay.training.tables.vocabulary.shards import mixed, owners, shard_bounds, shards_of

CPU = torch.device("cpu")
int64s = st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=30, deadline=None)
@given(batches=st.lists(st.lists(int64s | st.integers(-3, 3), unique=True, max_size=20), max_size=5))
def test_the_index_is_a_dictionary(batches: list[list[int]]) -> None:
    index, known = IdIndex(CPU), dict[int, int]()
    for batch in batches:
        new = [each for each in batch if each not in known]
        rows = {each: len(known) + 1 + position for position, each in enumerate(new)}
        index.insert(torch.tensor(new, dtype=torch.int64), torch.tensor(list(rows.values()), dtype=torch.int64))
        known |= rows
        asked = [*known, *(each + 1 for each in known if each < 2**63 - 1)]
        found = index.find(torch.tensor(asked, dtype=torch.int64))
        assert found.tolist() == [known.get(each, 0) for each in asked]


def test_many_ids_make_the_index_grow() -> None:
    index, ids = IdIndex(CPU), torch.arange(10_000) * 64
    for part in ids.split(700):
        index.insert(part, part // 64 + 1)
    assert torch.equal(index.find(ids), ids // 64 + 1)
    assert not index.find(ids + 1).any()
    assert index.num_bytes <= 64 * len(ids)


def test_shards_of_ids_are_pinned_and_even() -> None:
    """A checkpoint is in the order of shards."""
    assert shards_of(mixed(torch.tensor([0, 1, -1, 64, 2**62]))).tolist() == [0, 37, 59, 19, 5]
    counts = torch.bincount(shards_of(mixed(torch.arange(64_000) * 64)), minlength=64)
    assert counts.min() > 800 and counts.max() < 1200
    assert torch.bincount(owners(3, CPU)).tolist() == [22, 21, 21] and shard_bounds(3) == (0, 22, 43, 64)
