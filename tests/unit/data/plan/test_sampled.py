"""Rows by weight or class: the counts are those that were promised, and every law of an order holds."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.data.plan.order import Order, order_digest
from forebay.errors import InvalidOption, MissingColumn, WrongType

GROUPS = (70, 1, 130, 49)
NUM_ROWS = sum(GROUPS)
TRANSFORM = fb.Transform(id=fb.Label("id", dtype="int64"))


@pytest.fixture
def manifest(tmp_path: Path) -> fb.Manifest:
    """250 rows. Class "c" has 10 of them, "b" 40, "a" 200, at random positions."""
    rng = np.random.default_rng(3)
    classes = rng.permutation(["a"] * 200 + ["b"] * 40 + ["c"] * 10)
    table = pa.table(
        {
            "id": np.arange(NUM_ROWS),
            "kind": classes,
            "weight": np.where(classes == "c", 3.0, rng.random(NUM_ROWS)).round(2),
            "zero": np.zeros(NUM_ROWS),
            "holes": pa.array([None, *range(NUM_ROWS - 1)], pa.float32()),
            "flag": classes == "b",
        }
    )
    inner = pa.StructArray.from_arrays(
        [table[name].combine_chunks() for name in ("kind", "weight")], ["kind", "weight"]
    )
    table = table.append_column("in", inner)
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema) as writer:
        for start, rows in zip(np.cumsum((0, *GROUPS)), GROUPS, strict=False):
            writer.write_table(table.slice(start, rows), row_group_size=rows)
    return fb.scan(str(tmp_path))


@pytest.fixture
def plan(manifest: fb.Manifest) -> fb.Plan:
    return fb.build_plan(manifest, seed=5, lanes=4, shuffle_rows=16)


@pytest.fixture
def column(tmp_path: Path) -> Callable[[str], np.ndarray]:
    return lambda name: pq.read_table(tmp_path / "a.parquet")[name].to_numpy()


def ids_of(order: Order, epoch: int) -> list[int]:
    first = np.cumsum((0, *GROUPS))
    _, block, row = order.positioned_rows(epoch, 0, order.num_rows, range(order.lanes))
    return (first[block] + row).tolist()


@pytest.mark.parametrize("replacement", [True, False])
def test_classes_come_equally_often(plan: fb.Plan, column: Callable[[str], np.ndarray], replacement: bool) -> None:
    sampled = fb.Sampled(plan, balance="kind", replacement=replacement)
    each = 250 / 3 if replacement else 10
    assert sampled.num_rows == (250 if replacement else 30)
    assert sampled.class_rows == dict.fromkeys("abc", each)
    kinds = column("kind")
    seen: Counter[int] = Counter()
    for epoch in range(40):
        ids = ids_of(sampled, epoch)
        assert len(ids) == sampled.num_rows
        assert all(abs(count - each) <= len(GROUPS) for count in Counter(kinds[ids].tolist()).values())
        if not replacement:
            assert len(set(ids)) == len(ids)
            assert {int(row) for row in np.flatnonzero(kinds == "c")} <= set(ids), "all of the smallest class"
        seen.update(ids)
    for kind, rows in (("a", 200), ("b", 40), ("c", 10)):
        times = np.array([seen[int(row)] for row in np.flatnonzero(kinds == kind)])
        assert times.mean() == pytest.approx(40 * each / rows, rel=0.03)
        assert times.min() > 0 or not replacement, "over the epochs every row comes"


def test_a_category_without_rows_is_no_class(tmp_path: Path) -> None:
    for name, codes, categories in (("a", [2, 1, 1, 2], ["unused", "b", "a"]), ("b", [0, 1], ["b", "c"])):
        column = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), categories)
        pq.write_table(pa.table({"kind": column}), tmp_path / f"{name}.parquet")
    plan = fb.build_plan(fb.scan(str(tmp_path)), lanes=2)
    assert fb.Sampled(plan, balance="kind", replacement=False).class_rows == {"a": 1, "b": 1, "c": 1}


def test_copies_of_a_row_are_its_share_rounded(plan: fb.Plan, column: Callable[[str], np.ndarray]) -> None:
    sampled = fb.Sampled(plan, weight="weight", rows=1000)
    weights = column("weight")
    expected = 1000 * weights / weights.sum()
    totals = np.zeros(NUM_ROWS)
    for epoch in range(60):
        times = np.bincount(ids_of(sampled, epoch), minlength=NUM_ROWS)
        assert times.sum() == 1000
        assert np.all(np.abs(times - expected) < 1 + 1e-6)
        totals += times
    assert np.corrcoef(totals, expected)[0, 1] > 0.999
    assert np.abs(totals / 60 - expected).max() < 0.3


def test_without_replacement_no_row_comes_twice(plan: fb.Plan, column: Callable[[str], np.ndarray]) -> None:
    sampled = fb.Sampled(plan, weight="weight", replacement=False)
    weights = column("weight")
    assert sampled.num_rows == int(weights.sum() / 3 + 1e-6)
    for epoch in range(20):
        ids = ids_of(sampled, epoch)
        assert len(set(ids)) == len(ids) == sampled.num_rows
    fewer = fb.Sampled(plan, weight="weight", replacement=False, rows=np.int64(20))  # type: ignore[arg-type]
    assert len(set(ids_of(fewer, 0))) == 20


@pytest.mark.parametrize("option", ["balance", "weight"])
def test_a_path_is_as_its_column(plan: fb.Plan, manifest: fb.Manifest, option: str) -> None:
    name = {"balance": "kind", "weight": "weight"}[option]
    by_column, by_path = (fb.Sampled(plan, **{option: each}) for each in (name, f"in.{name}"))
    assert (by_path.id, by_path.class_rows) == (by_column.id, by_column.class_rows)
    halves = (manifest.split(0.4, stratify=each) for each in ("kind", "in.kind"))
    assert len({tuple(part.id for part in half) for half in halves}) == 1


def test_equal_weights_give_every_row_once(plan: fb.Plan, manifest: fb.Manifest) -> None:
    flags = fb.Sampled(plan, balance="flag", replacement=False)
    assert flags.num_rows == 80 and flags.class_rows == {False: 40.0, True: 40.0}
    one = fb.build_plan(manifest, seed=6, lanes=4)
    assert max(ids_of(fb.Sampled(one, weight="id", rows=249 * 125), 0)) == 249


@pytest.mark.parametrize("options", [{"balance": "flag"}, {"weight": "weight"}])
def test_rows_of_a_filter_are_sampled_alone(tmp_path: Path, plan: fb.Plan, options: dict[str, object]) -> None:
    kept = fb.scan(str(tmp_path), where="kind in ('b', 'c') and id != 7")
    table = pq.read_table(tmp_path / "a.parquet").to_pydict()
    allowed = {row for row, kind in zip(table["id"], table["kind"], strict=True) if kind != "a" and row != 7}
    sampled = fb.Sampled(fb.build_plan(kept, seed=5, lanes=4), rows=400, **options)  # type: ignore[arg-type]
    firsts = np.array([np.cumsum((0, *GROUPS))[group.index] for group in kept])
    _, block, row = sampled.positioned_rows(1, 0, sampled.num_rows, range(4))
    found = set((firsts[block] + row).tolist())
    heavy = {each for each in allowed if table["weight"][each] > 0.2}
    assert heavy <= found <= allowed


@pytest.mark.parametrize("options", [{"balance": "kind"}, {"weight": "weight", "replacement": False}])
def test_the_laws_of_an_order_hold(plan: fb.Plan, options: dict[str, object]) -> None:
    sampled = fb.Sampled(plan, **options)  # type: ignore[arg-type]
    copy = pickle.loads(pickle.dumps(sampled))
    assert copy.id == sampled.id and copy.class_rows == sampled.class_rows
    for epoch in (0, 1):
        whole = order_digest(sampled, epoch=epoch, global_batch=16)
        assert order_digest(copy, epoch=epoch, global_batch=16) == whole
        for size in range(2, 5):
            assert order_digest(sampled, epoch=epoch, global_batch=16, world_size=size) == whole
    # Batches of 2 rows leave two of four ranks without one.
    tiny = {"epoch": 0, "global_batch": 2}
    assert order_digest(sampled, **tiny, world_size=4) == order_digest(sampled, **tiny)
    assert order_digest(sampled, epoch=0, global_batch=16) != order_digest(sampled, epoch=1, global_batch=16)
    for size, start in ((1, 0), (3, 20)):
        for rank in range(size):
            lanes = sampled.owned_lanes(fb.World(rank=rank, size=size))
            spans = list(sampled.block_spans(1, start, lanes))
            for position, block, _ in zip(*sampled.positioned_rows(1, start, sampled.num_rows, lanes), strict=True):
                assert any(span.block == block and span.need <= position < span.release for span in spans)


def test_through_the_loader_resumed_anywhere_and_mixed(
    plan: fb.Plan, manifest: fb.Manifest, cache: fb.DiskCache
) -> None:
    sampled = fb.Sampled(plan, balance="kind")
    other = fb.build_plan(manifest.take([2]), lanes=4)
    for order in (sampled, fb.Mixture({"all": sampled, "few": other}, {"all": 3, "few": 1})):
        with fb.Loader(order, TRANSFORM, cache, global_batch=32) as loader:
            batches = [(loader.cursor(), batch["id"].tolist()) for batch in loader]
            if order is sampled:
                before = [ids for _, ids in batches]
                assert sum(before, []) == ids_of(sampled, 0)
        with fb.Loader(order, TRANSFORM, cache, global_batch=32) as loader:
            assert [batch["id"].tolist() for batch in loader] == [ids for _, ids in batches]
            position = sum(len(ids) for _, ids in batches[:3])
            loader.seek(fb.Cursor(plan_id=order.id, epoch=0, position=position, global_batch=32))
            assert [batch["id"].tolist() for batch in loader] == [ids for _, ids in batches[3:]]


def test_golden_copies(plan: fb.Plan) -> None:
    sampled = fb.Sampled(plan, balance="kind")
    assert ids_of(sampled, 0)[:12] == [64, 223, 142, 131, 64, 233, 81, 131, 64, 244, 196, 183]


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({}, InvalidOption, "give one of them"),
        ({"weight": "weight", "balance": "kind"}, InvalidOption, "give one of them"),
        ({"weight": 3}, InvalidOption, "weight=3: give the name of a column"),
        ({"balance": ["kind"]}, InvalidOption, r"balance=\['kind'\]: give the name"),
        ({"weight": "weight", "replacement": "no"}, InvalidOption, "replacement='no': give True or False"),
        ({"weight": "zero"}, InvalidOption, "0 everywhere"),
        ({"weight": "holes"}, InvalidOption, "1 rows without one, such as nan"),
        ({"balance": "holes"}, InvalidOption, "1 rows without a class.*where='holes is not None'"),
        ({"balance": "in.b"}, MissingColumn, r"no 'in.b' in .*: 'in' is struct<.*Give one of in\.kind, in\.weight"),
        ({"balance": "kind.b"}, MissingColumn, "no 'kind.b' in .*: 'kind' is string"),
        ({"balance": "weight"}, WrongType, "is double"),
        ({"weight": "kind"}, WrongType, "is string"),
        ({"weight": "nothing"}, MissingColumn, "nothing"),
        ({"weight": "weight", "rows": 0}, InvalidOption, "rows=0"),
        ({"balance": "kind", "replacement": False, "rows": 31}, InvalidOption, "at most 30 rows.*rows=30"),
    ],
)
def test_impossible_samples_are_refused(
    plan: fb.Plan, options: dict[str, object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        fb.Sampled(plan, **options)  # type: ignore[arg-type]
