from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import forebay as fb
from forebay.errors import InvalidOption, MissingPackage
from forebay.training.tables.lookup.bags import bags_of

MAX_LEN = 6
ITEMS: list[list[int] | None] = [[3, 1], [], None, [5], [4, 4, 4, 4, 4, 4], [], [7, 8, 9], [2]]
LISTS = st.lists(st.none() | st.lists(st.integers(0, 2**62), max_size=MAX_LEN), min_size=1, max_size=20)


@pytest.fixture(params=[True, False], ids=["padded", "values"])
def open_lists(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., fb.Loader]:
    """Function that opens a loader of lists, texts and a categorical column, in two row groups."""
    keys = [None if row == 2 else "k" * row for row in range(len(ITEMS))]
    table = pa.table({"id": range(len(ITEMS)), "items": pa.array(ITEMS, pa.list_(pa.int64())), "key": keys})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=5)
    transform = fb.Transform(
        id=fb.Label("id", dtype="int64"),
        items=fb.Ragged("items", max_len=MAX_LEN, padded=request.param),
        key=fb.Bytes("key", max_len=8),
        country=fb.Categorical(["id", "key"], buckets=50),
    )
    plan = fb.build_plan(fb.scan(str(tmp_path)), seed=3)
    return lambda **options: fb.Loader(plan, transform, **({"global_batch": 3} | options))


def lists_of(values: torch.Tensor, lengths: torch.Tensor) -> list[list[Any]]:
    return [part.tolist() for part in torch.split(values, lengths.tolist())]


@pytest.mark.parametrize("output", [{}, {"as_numpy": True}], ids=["tensors", "numpy"])
@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.variation), 5])
def test_lists_of_every_rank_are_those_of_the_file(
    open_lists: Callable[..., fb.Loader], size: int, output: dict[str, bool]
) -> None:
    seen = []
    for rank in range(size):
        with open_lists(world=fb.World(rank=rank, size=size), **output) as loader:
            for batch in loader:
                values, lengths = fb.bridges.jagged(batch, "items")
                ids = np.asarray(batch["id"]).tolist()
                assert (values.dtype, lengths.dtype) == (torch.int64, torch.int32)
                assert lists_of(values, lengths) == [ITEMS[row] or [] for row in ids]
                seen += ids if batch.weight else []
    assert sorted(seen) == list(range(len(ITEMS)))


@given(lists=LISTS, other=LISTS)
def test_values_are_those_of_arrow_key_by_key(lists: list[list[int] | None], other: list[list[int] | None]) -> None:
    rows = min(len(lists), len(other))
    column, second = (pa.array(each[:rows], pa.list_(pa.int64())) for each in (lists, other))
    table = pa.table({"a": column, "b": second})
    batch = {}
    for name in ("a", "b"):
        batch |= fb.Ragged(name, max_len=MAX_LEN).arrays(name, table)
    values, lengths = fb.bridges.jagged(batch, ["b", "a"])
    assert values.tolist() == second.flatten().to_pylist() + column.flatten().to_pylist()
    assert lengths.tolist() == [len(each or []) for each in second.to_pylist() + column.to_pylist()]


def test_what_has_no_padding_is_not_copied(open_lists: Callable[..., fb.Loader]) -> None:
    with open_lists() as loader:
        for batch in loader:
            values, lengths = fb.bridges.jagged(batch, "items")
            if batch.lists:
                assert values is batch["items"] and lengths is batch["items_lengths"]
            assert (values.dim(), batch["items"].dim()) == (1, 1 if batch.lists else 2)


def test_a_batch_without_any_value(open_lists: Callable[..., fb.Loader]) -> None:
    with open_lists(global_batch=8) as loader:
        batch = next(iter(loader))
    empty = batch.take(np.flatnonzero(batch["items_lengths"] == 0), weight=1.0)
    values, lengths = fb.bridges.jagged(empty, "items")
    assert values.shape == (0,) and lengths.tolist() == [0, 0, 0]


def test_texts_and_categories_are_lists_too(open_lists: Callable[..., fb.Loader]) -> None:
    with open_lists(global_batch=8) as loader:
        batch = next(iter(loader))
    texts = [bytes(each) for each in lists_of(*fb.bridges.jagged(batch, "key"))]
    assert texts == [b"" if row == 2 else b"k" * row for row in batch["id"].tolist()]
    assert lists_of(*fb.bridges.jagged(batch, "country")) == batch["country"].tolist()


@pytest.mark.parametrize("pool", ["sum", "mean"])
def test_bags_of_a_table_are_those_of_an_embedding_bag(open_lists: Callable[..., fb.Loader], pool: str) -> None:
    with open_lists(global_batch=8) as loader:
        batch = next(iter(loader))
    values, lengths = fb.bridges.jagged(batch, "items")
    weight = torch.randn(10, 4)
    pooled = bags_of(values, lengths, None, pool).pooled(weight[values], None)
    expected = torch.nn.functional.embedding_bag(values, weight, lengths.cumsum(0) - lengths, mode=pool)
    torch.testing.assert_close(pooled, expected)
    ids, counts = batch["items"], batch["items_lengths"]  # of both kinds
    bags = bags_of(ids, counts, None, pool)
    places = bags.used.nonzero()[:, 0]
    torch.testing.assert_close(bags.pooled(weight[ids.reshape(-1)[places]], places), expected)


PADDED = torch.zeros(2, 3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("batch", "names", "said"),
    [
        ({"a": PADDED}, [], "Name each feature once"),
        ({"a": PADDED}, ["a", "a"], "Name each feature once"),
        ({"a": PADDED}, "b", "no array 'b'. It has 'a'"),
        ({"a": PADDED[0]}, "a", r"shape \[3\]"),
        ({"a": PADDED, "a_lengths": torch.tensor([1, 4])}, "a", "2 integers of at most 3"),
        ({"a": PADDED, "a_lengths": torch.tensor([1])}, "a", "2 integers of at most 3"),
        ({"a": PADDED, "a_lengths": torch.ones(2)}, "a", "2 integers of at most 3"),
        ({"a": PADDED, "b": PADDED.float()}, ["a", "b"], "a torch.int64, b torch.float32"),
        ({"a": PADDED, "b": PADDED[:1]}, ["a", "b"], "a 2, b 1"),
        ({"a": PADDED[0], "a_lengths": torch.tensor([1, 3])}, "a", "integers from 0 whose sum is 3"),
        ({"a": PADDED[0], "a_lengths": torch.tensor([-1, 4])}, "a", "integers from 0 whose sum is 3"),
        ({"a": PADDED[0], "a_lengths": torch.ones(3)}, "a", "integers from 0 whose sum is 3"),
    ],
)
def test_what_does_not_fit_is_refused(batch: dict[str, Any], names: Any, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        fb.bridges.jagged(batch, names)


def test_torchrec_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchrec", None)
    with pytest.raises(MissingPackage, match="pip install torchrec fbgemm-gpu"):
        fb.bridges.keyed_jagged({"a": PADDED}, "a")


def test_the_keyed_tensor_of_torchrec(open_lists: Callable[..., fb.Loader]) -> None:
    pytest.importorskip("torchrec")
    with open_lists(global_batch=8) as loader:
        batch = next(iter(loader))
    keyed = fb.bridges.keyed_jagged(batch, ["country", "items"])
    assert keyed.keys() == ["country", "items"] and keyed.stride() == 8
    for key in ("country", "items"):
        assert lists_of(keyed[key].values(), keyed[key].lengths()) == lists_of(*fb.bridges.jagged(batch, key))
