from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.runtime.memory.counting_pool import CountingPool

import forebay as fb
from forebay.data.parquet import page_kernels as kernels
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.sources.scan import scan
from forebay.data.transform.dataset import Dataset
from forebay.data.transform.features.groups import Categorical, Dense, Label, Ragged
from forebay.data.transform.transform import Transform
from forebay.errors import (
    InvalidOption,
    MissingColumn,
    NullLabel,
    RowCountChanged,
    TransformFailed,
    Unfingerprintable,
    WrongType,
)
from forebay.runtime.memory import pool as memory_pool

TABLE = pa.table({"a": [1.0, 2.0], "b": [3, None], "t": [[1, 2], None], "y": [0, 1]})
WRONG: dict[str, Any] = {"list": [1, 2], "text": np.array(["a", "b"]), "scalar": np.float32(1)}


def features() -> Transform:
    return Transform(
        dense=Dense(["a", "b"]), ids=Categorical("b", buckets=100), tags=Ragged("t", max_len=3), label=Label("y")
    )


def double(batch: pa.RecordBatch) -> dict[str, Any]:
    return {"a": batch.column("a").to_numpy() * 2}


def test_keywords_name_the_arrays() -> None:
    block = features().apply(TABLE)
    assert block.schema == (
        ("dense", "float32", (2,)),
        ("ids", "int32", (1,)),
        ("tags", "int64", (3,)),
        ("tags_lengths", "int32", ()),
        ("label", "float32", ()),
    )
    assert block.rows == 2
    assert block.arrays["dense"].tolist() == [[1, 3], [2, 0]]


def test_columns_are_each_named_once_in_order_of_use() -> None:
    assert features().columns == ("a", "b", "t", "y")
    assert Transform(fn=double).columns is None


def test_columns_that_no_feature_asks_for_may_be_there() -> None:
    assert Transform(label=Label("y")).apply(TABLE).arrays["label"].tolist() == [0, 1]


def test_a_function_gets_one_batch_whatever_the_chunks() -> None:
    batches: list[pa.RecordBatch] = []

    def keep(batch: pa.RecordBatch) -> dict[str, Any]:
        batches.append(batch)
        return {"a": batch.column("a").to_numpy()}

    chunked = pa.concat_tables([TABLE, TABLE.slice(1)])
    block = Transform(fn=keep, version="1").apply(chunked)
    assert block.arrays["a"].tolist() == [1, 2, 2]
    assert [batch.num_rows for batch in batches] == [3]
    assert Transform(fn=keep, version="1").apply(TABLE.slice(0, 0)).rows == 0
    assert batches[-1].schema == TABLE.schema


def test_views_into_the_batch_stay_valid() -> None:
    block = Transform(fn=lambda batch: {"a": batch.column("a").to_numpy()}, version="1").apply(pa.table({"a": [1.5]}))
    assert block.arrays["a"].tolist() == [1.5]


def test_a_function_that_raises_is_named_and_its_error_kept() -> None:
    def breaks(batch: pa.RecordBatch) -> dict[str, Any]:
        raise KeyError("price")

    with pytest.raises(TransformFailed, match=r"breaks raised KeyError: 'price'.*called with 2 rows") as caught:
        Transform(fn=breaks).apply(TABLE)
    assert isinstance(caught.value.__cause__, KeyError)
    assert pickle.loads(pickle.dumps(caught.value)).function == caught.value.function


def test_a_function_that_ends_the_program_is_named() -> None:
    def ends(batch: pa.RecordBatch) -> dict[str, Any]:
        raise SystemExit("usage: tool [-h]")

    with pytest.raises(TransformFailed, match=r"ends raised SystemExit: usage: tool \[-h\]\. It was called") as caught:
        Transform(fn=ends).apply(TABLE)
    assert isinstance(caught.value.__cause__, SystemExit)


def test_a_function_that_drops_rows_is_named_with_both_counts() -> None:
    with pytest.raises(RowCountChanged, match=r"<lambda>: Array 'a' has 1 rows where the row group has 2") as caught:
        Transform(fn=lambda batch: {"a": np.zeros(1)}).apply(TABLE)
    assert caught.value.facts["rows"] == 1


@pytest.mark.parametrize("kind", [*WRONG, "nothing", "no mapping"])
def test_a_function_must_return_numbers_by_name(kind: str) -> None:
    def wrong(batch: pa.RecordBatch) -> Any:
        return {} if kind == "nothing" else np.zeros(2) if kind == "no mapping" else {"x": WRONG[kind]}

    with pytest.raises(TransformFailed, match="wrong"):
        Transform(fn=wrong, version="1").apply(TABLE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "was given nothing"),
        ({"fn": double, "x": Dense("a")}, "fn and the features x"),
        ({"fn": 3}, "cannot be called"),
        ({"x": Dense("a"), "version": "1"}, "no fn"),
        ({"x": "a"}, "is not a feature"),
        ({"fn": double, "version": ""}, "is not a version"),
        ({"fn": double, "version": 3}, "is not a version"),
        ({"x": Ragged("t", max_len=1), "x_lengths": Label("y")}, "both make array 'x_lengths'"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        Transform(**options)


def test_a_function_that_cannot_be_told_is_refused_at_once() -> None:
    secret = object()
    with pytest.raises(Unfingerprintable, match="'secret'"):
        Transform(fn=lambda batch: {"a": secret})


def test_a_transform_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        features().fingerprint = "0"  # type: ignore[misc]


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_the_fingerprint_travels(dumps: Callable[[object], bytes]) -> None:
    for transform in (features(), Transform(fn=double)):
        copy = pickle.loads(dumps(transform))
        assert copy.fingerprint == transform.fingerprint
        assert copy.columns == transform.columns
        assert copy.apply(TABLE).schema == transform.apply(TABLE).schema


def test_a_function_of_a_local_scope_is_shipped_by_value() -> None:
    factor = 3.0
    transform = Transform(fn=lambda batch: {"a": batch.column("a").to_numpy() * factor})
    copy = pickle.loads(cloudpickle.dumps(transform))
    assert copy.fingerprint == transform.fingerprint
    assert copy.apply(TABLE).arrays["a"].tolist() == [3, 6]


ORIGINAL: dict[str, Any] = {
    "d": Dense(["a", "b"]),
    "c": Categorical(["a", "b"]),
    "r": Ragged("t", max_len=3),
    "y": Label("y"),
}
CHANGES: list[dict[str, Any]] = [
    {"d": Dense(["b", "a"])},
    {"d": Dense(["a"])},
    {"d": Dense(["a", "b"], dtype="float64")},
    {"d": Dense(["a", "b"], fill=1.0)},
    {"d": Dense(["a", "b"], fill=float("nan"))},
    {"d": Dense(["a", "b"], fill=-0.0)},
    {"c": Categorical(["a", "c"])},
    {"c": Categorical(["a", "b"], buckets=9)},
    {"c": Categorical(["a", "b"], buckets=9, dtype="int64")},
    {"c": Categorical(["a", "b"], vocabulary={"a": (1, 2), "b": (3,)})},
    {"c": Categorical(["a", "b"], vocabulary={"a": (2, 1), "b": (3,)})},
    {"c": Categorical(["a", "b"], vocabulary={"a": (1, 2), "b": (4,)})},
    {"c": Categorical(["a", "b"], vocabulary={"a": (1, 2), "b": ("3",)})},
    {"c": Categorical(["a", "b"], vocabulary={"a": (1, 2), "b": (b"3",)})},
    {"r": Ragged("u", max_len=3)},
    {"r": Ragged("t", max_len=4)},
    {"r": Ragged("t", max_len=3, dtype="int32")},
    {"r": Ragged("t", max_len=3, buckets=9)},
    {"r": Ragged("t", max_len=3, buckets=10)},
    {"r": Ragged("t", max_len=3, buckets=10, dtype="int64")},
    {"r": Ragged("t", max_len=3, padded=False)},
    {"r": Ragged("t", padded=False)},
    {"y": Label("z")},
    {"y": Label("y", dtype="int64")},
    {"y": Dense("y")},
    {"y": Categorical("y")},
    {"new": Label("y")},
]


def test_every_option_of_every_feature_changes_the_fingerprint() -> None:
    variants = [Transform(**{**ORIGINAL, **change}).fingerprint for change in [{}, *CHANGES]]
    assert len(set(variants)) == len(variants)
    renamed = Transform(**{("e" if name == "d" else name): feature for name, feature in ORIGINAL.items()})
    reordered = Transform(**dict(reversed(ORIGINAL.items())))
    assert len({*variants, renamed.fingerprint, reordered.fingerprint}) == len(variants) + 2


def test_the_same_features_have_the_same_fingerprint() -> None:
    again: dict[str, Any] = {
        "d": Dense(("a", "b"), "float32", 0),
        "c": Categorical(("a", "b"), dtype="int32"),
        "r": Ragged("t", 3, "int64"),
        "y": ORIGINAL["y"],
    }
    assert Transform(**again).fingerprint == Transform(**ORIGINAL).fingerprint


def test_a_block_of_lists_alone_has_their_values_and_offsets() -> None:
    table = pa.table({"t": pa.array([[1, 2], None, [3]], pa.list_(pa.int32()))})
    transform = Transform(tags=Ragged("t", padded=False))
    block = transform.apply(table)
    assert {name: array.tolist() for name, array in block.arrays.items()} == {
        "@lists.values.tags": [1, 2, 3],
        "@lists.offsets.tags": [0, 2, 2, 3],
    }
    assert block.has_rows(3) and transform.apply(table[:0]).schema == block.schema


def test_names_of_attached_arrays_are_reserved() -> None:
    with pytest.raises(InvalidOption, match="reserved"):
        Transform(**{"@lists.values.tags": Label("y")})


def test_fingerprints_are_pinned() -> None:
    # Cached blocks are found by these: change them only on purpose, together with LAYOUT_VERSION.
    assert Transform(**ORIGINAL).fingerprint == "912977498db8cd90685516d1d7a1d7c94284a036674f2fd014da2d8677dab7fd"


def test_check_finds_columns_and_types_in_the_manifest(parquet_folder: Callable[..., Path]) -> None:
    manifest = scan(str(parquet_folder({"a.parquet": [3]})))
    Transform(d=Dense(["x0", "id"]), c=Categorical(["c0", "s"]), t=Ragged("tags", max_len=3), y=Label("clicked")).check(
        manifest
    )
    Transform(fn=double).check(manifest)
    with pytest.raises(MissingColumn, match="Did you mean 'clicked'"):
        Transform(y=Label("click")).check(manifest)
    with pytest.raises(WrongType, match="string"):
        Transform(d=Dense("s")).check(manifest)
    with pytest.raises(WrongType, match="It takes lists"):
        Transform(t=Ragged("s", max_len=1)).check(manifest)


def test_apply_reads_row_groups(parquet_folder: Callable[..., Path]) -> None:
    manifest = scan(str(parquet_folder({"a.parquet": [3, 4]})))
    transform = Transform(d=Dense("x0"), t=Ragged("tags", max_len=3), y=Label("clicked"))
    block = transform.apply(RowGroupReader(manifest).read(1, transform.columns))
    assert block.arrays["d"][:, 0].tolist() == [3, 4, 5, 6]
    assert block.arrays["t_lengths"].tolist() == [3, 3, 0, 1]


def test_apply_checks_the_table_it_is_given() -> None:
    with pytest.raises(MissingColumn):
        Transform(d=Dense("nope")).apply(TABLE)
    with pytest.raises(NullLabel):
        Transform(y=Label("b")).apply(TABLE)


FEATURES_OF_ALL_KINDS = {
    "Dense": Dense(["a", "b"]),
    "Categorical": Categorical(["i", "i2"], buckets=100),
    "Ragged": Ragged("l", max_len=4),
    "Ragged without padding": Ragged("l", padded=False),
    "Bytes": fb.Bytes("s", max_len=8),
    "Time": fb.Time(["t"]),
    "Array": fb.Array("f", [4]),
}


@pytest.mark.parametrize("kind", FEATURES_OF_ALL_KINDS)
def test_a_block_is_in_memory_that_is_used_again(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of the system costs a page fault every 4 KiB of each block."""
    rows = 10_000
    numbers = np.arange(rows)
    table = pa.table(
        {
            "a": numbers.astype(np.float32), "b": numbers.astype(np.float32), "i": numbers, "i2": numbers,
            "l": pa.array([[1, 2, 3]] * rows), "s": pa.array(["abcdefgh"] * rows),
            "t": pa.array(numbers, pa.timestamp("s")),
            "f": pa.FixedSizeListArray.from_arrays(np.arange(4 * rows, dtype=np.float32), 4),
        }
    )  # fmt: skip
    transform = Transform(x=FEATURES_OF_ALL_KINDS[kind])
    pool = CountingPool()
    monkeypatch.setattr(memory_pool, "array_pool", pool)
    block = transform.apply(table)
    assert pool.used_bytes >= max(array.nbytes for array in block.arrays.values())
    del block
    assert pool.used_bytes == 0


_STRUCT = pa.struct([("f", pa.float64()), ("g", pa.int64())])
_KINDS = ("int32", "uint32", "int64", "uint64", "float32", "float64", "int8", "bool")


@settings(max_examples=40, deadline=None)
@given(
    columns=st.lists(st.tuples(st.sampled_from(_KINDS), st.sampled_from(["none", "some", "all"])), min_size=1),
    dtype=st.sampled_from(["float32", "float64", "float16"]),
    rows=st.integers(1, 70),
    options=st.sampled_from([{}, {"compression": "zstd"}, {"write_page_checksum": True}, {"use_dictionary": False}]),
)
def test_columns_that_are_no_objects_of_arrow_make_equal_blocks(
    tmp_path_factory: pytest.TempPathFactory,
    columns: list[tuple[str, str]],
    dtype: str,
    rows: int,
    options: dict[str, Any],
) -> None:
    kernels.load()
    rng = np.random.default_rng(rows)
    made = {"y": pa.array(np.arange(rows)), "s": pa.array([{"f": 1.5, "g": 2}] * rows, _STRUCT)}
    texts = [["é", "", "3", "x" * 40][number] for number in rng.integers(0, 4, rows).tolist()]
    made |= {"t": pa.array(texts), "u": pa.array([None, *texts[1:]])}
    for index, (kind, nulls) in enumerate(columns):
        values = rng.integers(0, 100, rows).astype(kind)
        mask = {"none": np.zeros(rows, bool), "some": np.arange(rows) % 5 == 3, "all": np.ones(rows, bool)}[nulls]
        made[f"c{index}"] = pa.array(values, mask=mask)
    folder = tmp_path_factory.mktemp("decoded") / "day=2"
    folder.mkdir()
    pq.write_table(pa.table(made), folder / "a.parquet", row_group_size=50, **options)
    names = [f"c{index}" for index in range(len(columns))]
    whole = [name for name, (kind, _) in zip(names, columns, strict=True) if kind.startswith("int") or kind == "uint32"]
    made_of: dict[str, Any] = {
        "x": Dense([*reversed(names), "s.f", "day"], dtype=dtype, fill=7),
        "ids": Dense(["y", *whole], dtype="int64"),
        "categories": Categorical("y", buckets=10),
        "hashed": Categorical(["t", "y", "u"], buckets=100_000),
        "known": Categorical("t", vocabulary={"t": ["é", "3"]}),
        "label": Label("y", dtype="int64"),
    }
    transform = Transform(**made_of)
    manifest = scan(str(folder.parent))
    reader, dataset = RowGroupReader(manifest), Dataset(manifest, transform)
    for index in range(len(manifest)):
        decoded = reader.decode_lazily(reader.fetch(index, dataset.columns))
        found, expected = transform.apply(decoded), transform.apply(decoded.to_table())
        assert found.schema == expected.schema and found.rows == expected.rows == decoded.num_rows
        for name, array in expected.arrays.items():
            assert found.arrays[name].tobytes() == array.tobytes()
