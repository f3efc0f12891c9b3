"""Feature groups over all forms of tables: in chunks, sliced, with nulls, empty, dictionary-encoded."""

from __future__ import annotations

import datetime
import decimal
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from forebay.data.parquet.arrow_types import parse_type
from forebay.data.transform.features.categories import value_type
from forebay.data.transform.features.fixed_shape import Array
from forebay.data.transform.features.groups import Categorical, Dense, Feature, Label, Ragged
from forebay.data.transform.features.hashing import bucket_ids, column_salt, hash_integers, hash_texts
from forebay.data.transform.features.ragged import LIST_OFFSETS, LIST_VALUES, list_offsets
from forebay.errors import InvalidOption, MissingColumn, NullLabel, TransformFailed, WrongType


def arrays(feature: Feature, table: pa.Table) -> dict[str, np.ndarray[Any, Any]]:
    feature.check("f", dict(zip(table.schema.names, table.schema.types, strict=True)))
    return feature.arrays("f", table)


def only(feature: Feature, table: pa.Table) -> np.ndarray[Any, Any]:
    return arrays(feature, table)["f"]


def column(values: Sequence[Any], kind: pa.DataType) -> pa.Table:
    return pa.table({"c": pa.array(values, kind)})


def in_chunks(table: pa.Table, cuts: Sequence[int]) -> pa.Table:
    """The same table, cut at `cuts`. Each piece is a slice of a longer array."""
    padded = pa.concat_tables([table, table]).combine_chunks()
    edges = [0, *sorted(min(cut, table.num_rows) for cut in cuts), table.num_rows]
    pieces = [padded.slice(start, stop - start) for start, stop in itertools.pairwise(edges)]
    return pa.concat_tables(pieces)


def hashed(name: str, values: Sequence[int], buckets: int) -> list[int]:
    raw = np.array([value % 2**64 for value in values], np.uint64)
    return bucket_ids(hash_integers(raw, column_salt(name)), buckets).tolist()


class TestDense:
    def test_packs_columns_side_by_side_in_the_order_asked_for(self) -> None:
        table = pa.table({"a": [1, 2, 3], "b": [0.5, 1.5, 2.5], "c": [True, False, True]})
        packed = only(Dense(["c", "a", "b"]), table)
        assert packed.dtype == np.float32
        assert packed.flags.c_contiguous
        assert packed.tolist() == [[1, 1, 0.5], [0, 2, 1.5], [1, 3, 2.5]]

    def test_one_name_makes_one_column(self) -> None:
        assert only(Dense("c"), column([1, 2], pa.int8())).shape == (2, 1)

    def test_nulls_are_filled_and_nan_stays(self) -> None:
        packed = only(Dense("c", fill=-1.0), column([None, float("nan"), 2.0], pa.float64()))
        np.testing.assert_array_equal(packed[:, 0], np.array([-1, np.nan, 2], np.float32))

    def test_fill_may_be_nan(self) -> None:
        assert np.isnan(only(Dense("c", fill=float("nan")), column([None], pa.float32()))).all()

    @pytest.mark.parametrize("kind", [pa.int64(), pa.float32(), pa.bool_(), pa.decimal128(9, 2), pa.null()], ids=str)
    def test_a_column_of_nulls_is_all_fill(self, kind: pa.DataType) -> None:
        assert only(Dense("c", fill=7.0), column([None, None], kind)).tolist() == [[7], [7]]

    @pytest.mark.parametrize(
        ("kind", "value", "expected"),
        [
            (pa.uint64(), 2**64 - 1, 2.0**64),
            (pa.int64(), -(2**63), -(2.0**63)),
            (pa.int64(), 16_777_217, 16_777_216.0),
            (pa.decimal128(9, 2), decimal.Decimal("-12.25"), -12.25),
            (pa.decimal256(60, 2), decimal.Decimal("12.5"), 12.5),
            (pa.bool_(), True, 1.0),
            (pa.float64(), 1e300, float("inf")),
            (pa.dictionary(pa.int8(), pa.float64()), 1.5, 1.5),
        ],
    )
    def test_numbers_round_to_float32(self, kind: pa.DataType, value: Any, expected: float) -> None:
        plain = pa.array([value], value_type(kind))
        values = plain.dictionary_encode() if pa.types.is_dictionary(kind) else plain
        assert only(Dense("c"), pa.table({"c": values}))[0, 0] == expected

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    @pytest.mark.parametrize("kind", [pa.int64(), pa.bool_(), pa.float64(), pa.float16(), pa.decimal128(9, 2)], ids=str)
    def test_every_number_fits_every_float(self, kind: pa.DataType, dtype: str) -> None:
        one = decimal.Decimal(1) if pa.types.is_decimal(kind) else True if pa.types.is_boolean(kind) else 1
        packed = only(Dense("c", dtype=dtype), column([one, None], kind))
        assert packed.dtype == dtype
        assert packed.tolist() == [[1], [0]]

    def test_integers_stay_exact_in_an_integer_dtype(self) -> None:
        big = 2**62 + 1
        assert only(Dense("c", dtype="int64", fill=-1), column([big, None], pa.int64())).tolist() == [[big], [-1]]

    def test_an_integer_that_does_not_fit_is_named(self) -> None:
        with pytest.raises(WrongType, match=r"'c' \(int64\) into int8: .*300"):
            only(Dense("c", dtype="int8"), column([300], pa.int64()))

    def test_no_rows_make_an_array_of_no_rows(self) -> None:
        assert only(
            Dense(["a", "b"]), pa.table({"a": pa.array([], pa.int8()), "b": pa.array([], pa.float32())})
        ).shape == (0, 2)

    @given(
        st.lists(st.tuples(st.none() | st.floats(width=32), st.none() | st.integers(-1000, 1000)), max_size=30),
        st.lists(st.integers(0, 30), max_size=4),
    )
    def test_cuts_do_not_matter(self, rows: list[tuple[float | None, int | None]], cuts: list[int]) -> None:
        table = pa.table(
            {"a": pa.array([a for a, _ in rows], pa.float32()), "b": pa.array([b for _, b in rows], pa.int16())}
        )
        expected = np.array([[5 if a is None else a, 5 if b is None else b] for a, b in rows], np.float32).reshape(
            -1, 2
        )
        np.testing.assert_array_equal(only(Dense(["a", "b"], fill=5), table), expected)
        np.testing.assert_array_equal(only(Dense(["a", "b"], fill=5), in_chunks(table, cuts)), expected)

    @pytest.mark.parametrize(
        "kind", [pa.string(), pa.list_(pa.int8()), pa.date32(), pa.struct([("a", pa.int8())])], ids=str
    )
    def test_other_types_are_refused(self, kind: pa.DataType) -> None:
        with pytest.raises(WrongType, match=r"Dense 'f' was given column 'c', which is .*Categorical"):
            Dense("c").check("f", {"c": kind})

    @pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
    @pytest.mark.parametrize("kind", [pa.decimal32(5), pa.decimal64(15), pa.decimal128(38), pa.decimal256(50)], ids=str)
    def test_decimals_without_fractions_become_integers(self, kind: pa.DataType, dtype: str) -> None:
        values = column([decimal.Decimal(99_999), None], kind)
        assert only(Dense("c", dtype=dtype), values).tolist() == [[99_999], [0]]
        with pytest.raises(WrongType, match="out of bounds"):
            only(Dense("c", dtype="int16"), values)

    def test_a_type_without_a_feature_is_left_to_a_function(self) -> None:
        there = "extension<arrow.fixed_shape_tensor[value_type=float, shape=[3,4]]>"
        assert str(pa.fixed_shape_tensor(pa.float32(), [3, 4])) == there
        with pytest.raises(WrongType, match=rf"column 'c', which is {re.escape(there)}\. .*fb\.Transform\(fn=\.\.\.\)"):
            Dense("c").check("f", {"c": parse_type(there)})

    @pytest.mark.parametrize("kind", [pa.float32(), pa.decimal128(9, 2)], ids=str)
    def test_fractions_are_not_cut_off_silently(self, kind: pa.DataType) -> None:
        with pytest.raises(WrongType, match="fractions"):
            Dense("c", dtype="int64").check("f", {"c": kind})
        Dense("c", dtype="int64").check("f", {"c": pa.decimal128(9, 0)})

    @pytest.mark.parametrize(
        "options",
        [
            {"dtype": "float8"},
            {"dtype": "str"},
            {"dtype": "int8", "fill": 0.5},
            {"dtype": "uint8", "fill": -1},
            {"fill": None},
            {"fill": "a"},
            {"fill": 1e300},
            {"dtype": "int64", "fill": float("nan")},
            {"dtype": "int64", "fill": 1 << 63},
        ],
    )
    def test_impossible_options_are_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidOption):
            Dense("c", **options)
        if "fill" in options:
            with pytest.raises(InvalidOption, match=r"Array\(fill=.* does not fit"):
                Array("c", 2, **options)

    @pytest.mark.parametrize("fill", [-(1 << 53) - 1, (1 << 63) - 1, np.int64(1 << 62) + 1])
    def test_a_whole_fill_is_exact_and_has_its_own_fingerprint(self, fill: int) -> None:
        def both(number: int) -> list[Feature]:
            return [Dense("c", dtype="int64", fill=number), Array("v", 1, dtype="int64", fill=number)]

        table = pa.table({"c": pa.nulls(1, pa.int64()), "v": pa.nulls(1, pa.list_(pa.int64()))})
        for feature, other in zip(both(fill), both(fill - 1), strict=True):
            assert feature.arrays("f", table)["f"].tolist() == [[fill]]
            assert feature.identity() != other.identity()

    @pytest.mark.parametrize(
        ("fill", "text"),
        [(0, "0.0"), (5, "5.0"), (-1.5, "-1.5"), (float("nan"), "nan"), (1 << 53, "9007199254740992.0")],
    )
    def test_usual_fills_keep_the_names_of_their_blocks(self, fill: float, text: str) -> None:
        assert Dense("c", fill=fill, dtype="float64").identity() == ["Dense", ["c"], "float64", text]


class TestColumns:
    @pytest.mark.parametrize("columns", [[], "", [""], ["a", "a"], [1]])
    def test_no_column_or_one_twice_is_refused(self, columns: Any) -> None:
        with pytest.raises(InvalidOption):
            Dense(columns)

    def test_a_missing_column_lists_what_there_is_and_what_was_meant(self) -> None:
        with pytest.raises(
            MissingColumn, match=r"'Price'.*3 columns: price, age, id.*Did you mean 'price'\?"
        ) as caught:
            Dense(["age", "Price"]).check("f", {"price": pa.int8(), "age": pa.int8(), "id": pa.int8()})
        assert caught.value.facts["column"] == "Price"

    def test_columns_are_a_tuple_whatever_was_given(self) -> None:
        assert Dense("a").columns == Label("a").columns == Ragged("a", 3).columns == ("a",)
        assert Categorical(["a", "b"]).columns == ("a", "b")
        assert Dense(["a"]) == Dense(("a",))


class TestCategorical:
    def test_ids_are_hashes_of_column_and_value_and_0_is_null(self) -> None:
        table = pa.table({"user": pa.array([5, None, -1, 5]), "item": pa.array([5, 6, None, 7])})
        ids = only(Categorical(["user", "item"], buckets=1000), table)
        assert ids.dtype == np.int32
        assert ids.flags.c_contiguous
        user, item = hashed("user", [5, -1], 1000), hashed("item", [5, 6, 7], 1000)
        assert ids.tolist() == [[user[0], item[0]], [0, item[1]], [user[1], 0], [user[0], item[2]]]
        assert user[0] != item[0]

    @pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64()], ids=str)
    def test_the_width_of_an_integer_does_not_matter(self, kind: pa.DataType) -> None:
        assert only(Categorical("c"), column([7], kind)).tolist() == [hashed("c", [7], 1_000_000)]

    def test_extreme_integers_have_ids(self) -> None:
        assert only(Categorical("c"), column([2**64 - 1], pa.uint64())).tolist() == [
            hashed("c", [2**64 - 1], 1_000_000)
        ]
        assert only(Categorical("c"), column([-(2**63)], pa.int64())).tolist() == [hashed("c", [2**63], 1_000_000)]

    @pytest.mark.parametrize(
        ("kind", "value", "integer"),
        [
            (pa.bool_(), True, 1),
            (pa.date32(), datetime.date(1970, 1, 11), 10),
            (pa.date64(), datetime.date(1970, 1, 2), 86_400_000),
            (pa.timestamp("us", "UTC"), datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC), 1_000_000),
            (pa.timestamp("s"), datetime.datetime(1969, 12, 31, 23, 59, 59), -1),
            (pa.time32("s"), datetime.time(0, 1), 60),
            (pa.duration("ms"), datetime.timedelta(seconds=1), 1000),
        ],
    )
    def test_dates_times_and_bools_count_as_their_integer(self, kind: pa.DataType, value: Any, integer: int) -> None:
        assert only(Categorical("c"), column([value, None], kind)).tolist() == [hashed("c", [integer], 1_000_000), [0]]

    @pytest.mark.parametrize(
        "kind",
        [
            pa.string(),
            pa.large_string(),
            pa.string_view(),
            pa.binary(),
            pa.large_binary(),
            pa.binary_view(),
            pa.binary(2),
        ],
        ids=str,
    )
    def test_text_counts_by_its_bytes(self, kind: pa.DataType) -> None:
        expected = bucket_ids(hash_texts([b"ab", b"cd"], column_salt("c"), 2), 1_000_000).tolist()
        ids = only(Categorical("c"), column(["ab", None, "cd", "ab"], kind))
        assert ids[:, 0].tolist() == [expected[0], 0, expected[1], expected[0]]

    @pytest.mark.parametrize("kind", [pa.decimal32(6, 2), pa.decimal128(9, 2), pa.decimal256(60, 2)], ids=str)
    def test_decimals_count_by_their_text(self, kind: pa.DataType) -> None:
        expected = bucket_ids(hash_texts([b"1.50"], column_salt("c"), 1), 1_000_000).tolist()
        assert only(Categorical("c"), column([decimal.Decimal("1.5"), None], kind)).tolist() == [expected, [0]]

    @pytest.mark.parametrize(
        "kind", [pa.int64(), pa.string(), pa.bool_(), pa.null(), pa.decimal128(5, 2), pa.date32()], ids=str
    )
    def test_nothing_but_nulls_is_all_zero(self, kind: pa.DataType) -> None:
        assert only(Categorical("c"), column([None, None], kind)).tolist() == [[0], [0]]
        assert only(Categorical("c", vocabulary={"c": ()}), column([None], kind)).tolist() == [[0]]

    @pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.dictionary(pa.int8(), pa.string())], ids=str)
    def test_no_rows_make_an_array_of_no_rows(self, kind: pa.DataType) -> None:
        assert only(Categorical("c"), column([], kind)).shape == (0, 1)
        assert only(Categorical("c"), pa.table({"c": pa.chunked_array([], kind)})).shape == (0, 1)

    def test_a_dictionary_may_hold_nulls_unused_values_and_unsigned_indices(self) -> None:
        indices = pa.array([0, None, 2, 1], pa.uint8())
        encoded = pa.DictionaryArray.from_arrays(indices, pa.array(["a", None, "b", "never"]))
        plain = pa.table({"c": ["a", None, "b", None]})
        assert only(Categorical("c"), pa.table({"c": encoded})).tolist() == only(Categorical("c"), plain).tolist()

    def test_a_sliced_dictionary_is_read_from_its_offset(self) -> None:
        values = pa.array(["x", "a", "b"]).slice(1)
        encoded = pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), values)
        plain = pa.table({"c": ["b", "a"]})
        assert only(Categorical("c"), pa.table({"c": encoded})).tolist() == only(Categorical("c"), plain).tolist()

    @given(
        st.lists(st.none() | st.sampled_from(["", "a", "bb", "ä", "a long one"]), max_size=25),
        st.lists(st.integers(0, 25), max_size=4),
        st.booleans(),
    )
    def test_cuts_and_dictionaries_do_not_matter(self, texts: list[str | None], cuts: list[int], fitted: bool) -> None:
        plain = column(texts, pa.string())
        feature = Categorical("c", vocabulary={"c": ("bb", "")}) if fitted else Categorical("c", buckets=50)
        expected = only(feature, plain).tolist()
        pieces = in_chunks(plain, cuts)
        # Every chunk gets its own dictionary.
        encoded = [chunk.dictionary_encode() for chunk in pieces["c"].chunks]
        dictionaries = pa.table({"c": pa.chunked_array(encoded, pa.dictionary(pa.int32(), pa.string()))})
        assert only(feature, pieces).tolist() == expected
        assert only(feature, dictionaries).tolist() == expected
        assert only(feature, column(texts, pa.large_string())).tolist() == expected

    @given(
        st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=25), st.lists(st.integers(0, 25), max_size=4)
    )
    def test_cuts_of_integers_do_not_matter(self, values: list[int | None], cuts: list[int]) -> None:
        table = column(values, pa.int64())
        expected = [[0] if value is None else hashed("c", [value], 97) for value in values]
        assert only(Categorical("c", buckets=97), in_chunks(table, cuts)).tolist() == expected

    @pytest.mark.parametrize("kind", [pa.float32(), pa.float64(), pa.dictionary(pa.int8(), pa.float64())], ids=str)
    def test_floats_are_refused(self, kind: pa.DataType) -> None:
        with pytest.raises(WrongType, match="Floats have no stable identity"):
            Categorical("c").check("f", {"c": kind})

    @pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.struct([("a", pa.int8())])], ids=str)
    def test_compound_types_are_refused(self, kind: pa.DataType) -> None:
        with pytest.raises(WrongType, match="'c'"):
            Categorical("c").check("f", {"c": kind})

    @pytest.mark.parametrize("buckets", [-1, 0, 1, 2**63, 1e6, None, "9"])
    def test_impossible_buckets_are_refused(self, buckets: Any) -> None:
        with pytest.raises(InvalidOption, match="buckets"):
            Categorical("c", buckets=buckets)

    @pytest.mark.parametrize(
        ("options", "dtype"),
        [
            ({"buckets": 2**31}, np.int32),
            ({"buckets": 2**31 + 1}, np.int64),
            ({"buckets": 9, "dtype": "int64"}, np.int64),
            ({"buckets": 9, "dtype": np.int32}, np.int32),
            ({"vocabulary": {"c": (5,)}}, np.int32),
            ({"vocabulary": {"c": (5,)}, "dtype": "int64"}, np.int64),
        ],
    )
    def test_ids_are_int32_where_all_of_them_fit(self, options: dict[str, Any], dtype: type) -> None:
        feature = Categorical("c", **options)
        ids = only(feature, column([5, None, 7], pa.int64()))
        assert ids.dtype == dtype
        assert feature.array_dtype == ids.dtype.name
        expected = [2, 0, 1] if "vocabulary" in options else hashed("c", [5, 0, 7], options["buckets"])
        assert ids[[0, 2], 0].tolist() == [expected[0], expected[2]]
        assert ids[1] == 0

    def test_an_id_above_int32_stays_whole(self) -> None:
        ids = only(Categorical("c", buckets=2**40), column(range(100), pa.int64()))
        assert ids[:, 0].tolist() == hashed("c", range(100), 2**40)
        assert ids.max() > 2**31

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"dtype": "int16"}, r"Categorical\(dtype='int16'\) .* int32 or int64, .* Leave dtype out"),
            ({"dtype": "float32"}, "int32 or int64"),
            ({"dtype": "int"}, "is not known"),
            ({"buckets": 2**31 + 1, "dtype": "int32"}, r"dtype='int32'\) cannot hold 2,147,483,649 ids.*Leave dtype"),
        ],
    )
    def test_dtypes_that_hold_no_ids_are_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidOption, match=message):
            Categorical("c", **options)

    def test_embeddings_of_torch_train_on_either_dtype_alike(self) -> None:
        table = pa.table({"user": pa.array([5, None, -1, 5]), "item": pa.array([5, 6, None, 7])})
        gradients = []
        for dtype in (None, "int64"):
            ids = torch.from_numpy(only(Categorical(["user", "item"], buckets=50, dtype=dtype), table))
            offsets = torch.arange(0, ids.numel(), 2, dtype=ids.dtype)
            for sparse in (False, True):
                torch.manual_seed(0)
                bag, single = nn.EmbeddingBag(50, 3, sparse=sparse), nn.Embedding(50, 3, sparse=sparse)
                (bag(ids.flatten(), offsets).sum() + bag(ids).sum() + single(ids).sum()).backward()
                gradients += [module.weight.grad.to_dense() for module in (bag, single)]
        assert all(torch.equal(a, b) for a, b in zip(gradients[:4], gradients[4:], strict=True))

    def test_uuids_are_read_through_their_storage(self) -> None:
        raw = pa.array([bytes(16), None, b"1" * 16], pa.binary(16))
        wrapped = pa.table({"c": pa.ExtensionArray.from_storage(pa.uuid(), raw)})
        assert only(Categorical("c"), wrapped).tolist() == only(Categorical("c"), pa.table({"c": raw})).tolist()


class TestVocabulary:
    def test_known_unknown_and_null(self) -> None:
        feature = Categorical(["a", "b"], vocabulary={"b": (30, 10), "a": ("x",), "other": (1,)})
        table = pa.table({"a": ["x", "y", None], "b": [10, 30, 99]})
        assert only(feature, table).tolist() == [[2, 3], [1, 2], [0, 1]]
        assert feature.num_ids == (3, 4)

    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            (pa.date32(), [datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)]),
            (pa.date32(), [18262, 18628]),
            (pa.timestamp("ns", "UTC"), [5, 6]),
            (pa.bool_(), [True, False]),
            (pa.binary(), [b"a", b"b"]),
            (pa.string_view(), ["a", "b"]),
            (pa.decimal128(5, 2), [decimal.Decimal("1.5"), decimal.Decimal("2.5")]),
            (pa.decimal64(5, 2), [decimal.Decimal("1.5"), decimal.Decimal("2.5")]),
            (pa.uint64(), [2**64 - 1, 0]),
        ],
    )
    def test_every_kind_of_value_can_be_looked_up(self, kind: pa.DataType, values: list[Any]) -> None:
        table = column([values[1], None, values[0]], kind)
        assert only(Categorical("c", vocabulary={"c": values}), table).tolist() == [[3], [0], [2]]
        assert only(Categorical("c", vocabulary={"c": values[:1]}), table).tolist() == [[1], [0], [2]]

    @pytest.mark.parametrize(("kind", "values"), [(pa.int8(), ["a"]), (pa.int8(), [300]), (pa.string(), [1])])
    def test_a_vocabulary_of_another_type_is_refused_before_reading(self, kind: pa.DataType, values: list[Any]) -> None:
        with pytest.raises(WrongType, match="vocabulary of column 'c' does not fit"):
            Categorical("c", vocabulary={"c": values}).check("f", {"c": kind})

    @pytest.mark.parametrize("vocabulary", [{}, {"d": (1,)}, {"c": (1, 1)}, {"c": (1, None)}])
    def test_an_unusable_vocabulary_is_refused(self, vocabulary: dict[str, tuple[Any, ...]]) -> None:
        with pytest.raises(InvalidOption, match="'c'"):
            Categorical("c", vocabulary=vocabulary)

    def test_the_vocabulary_is_a_copy(self) -> None:
        given_vocabulary = {"c": [1, 2]}
        feature = Categorical("c", vocabulary=given_vocabulary)
        given_vocabulary["c"].append(3)
        assert only(feature, column([3], pa.int64())).tolist() == [[1]]


class TestRagged:
    def test_pads_cuts_and_counts(self) -> None:
        table = column([[1, 2, 3], [], None, [4], [5, None, 6]], pa.list_(pa.int64()))
        made = arrays(Ragged("c", max_len=2), table)
        assert list(made) == ["f", "f_lengths"]
        assert made["f"].tolist() == [[1, 2], [0, 0], [0, 0], [4, 0], [5, 0]]
        assert made["f"].dtype == np.int64
        assert made["f_lengths"].tolist() == [2, 0, 0, 1, 2]
        assert made["f_lengths"].dtype == np.int32

    @pytest.mark.parametrize(
        ("kind", "dtype"),
        [
            (pa.int32(), "int64"),
            (pa.int64(), "float32"),
            (pa.float64(), "float32"),
            (pa.bool_(), "int8"),
            (pa.uint8(), "int16"),
        ],
    )
    def test_values_are_cast(self, kind: pa.DataType, dtype: str) -> None:
        zero, one = (False, True) if pa.types.is_boolean(kind) else (0, 1)
        made = only(Ragged("c", max_len=3, dtype=dtype), column([[one, zero, None], [one]], pa.list_(kind)))
        assert made.dtype == dtype
        assert made.tolist() == [[1, 0, 0], [1, 0, 0]]

    def test_buckets_hash_as_categorical_does(self) -> None:
        lists = column([["a", None], ["b", "a"]], pa.list_(pa.string()))
        a, b = only(Categorical("c", buckets=99), column(["a", "b"], pa.string()))[:, 0].tolist()
        assert only(Ragged("c", max_len=3, buckets=99), lists).tolist() == [[a, 0, 0], [b, a, 0]]
        encoded = lists.cast(pa.schema([("c", pa.list_(pa.dictionary(pa.int32(), pa.string())))]))
        assert only(Ragged("c", max_len=3, buckets=99), encoded).tolist() == [[a, 0, 0], [b, a, 0]]

    @pytest.mark.parametrize(
        ("options", "dtype"),
        [({}, "int32"), ({"dtype": "int64"}, "int64"), ({"buckets": 2**31 + 1}, "int64")],
    )
    def test_hashed_ids_have_the_dtype_of_categorical(self, options: dict[str, Any], dtype: str) -> None:
        feature = Ragged("c", max_len=3, **{"buckets": 99, **options})
        made = arrays(feature, column([["a", "b", "a", "c"], None, ["b"]], pa.list_(pa.string())))
        buckets = options.get("buckets", 99)
        a, b = only(Categorical("c", buckets=buckets), column(["a", "b"], pa.string()))[:, 0].tolist()
        assert made["f"].dtype == feature.array_dtype == dtype
        assert made["f"].tolist() == [[a, b, a], [0, 0, 0], [b, 0, 0]]

    @pytest.mark.parametrize(
        "kind", [pa.list_(pa.null()), pa.null(), pa.list_(pa.int64()), pa.list_(pa.string())], ids=str
    )
    def test_nothing_but_nulls_and_no_rows(self, kind: pa.DataType) -> None:
        feature = Ragged("c", max_len=2, buckets=9)
        assert arrays(feature, column([None, None], kind))["f_lengths"].tolist() == [0, 0]
        assert arrays(feature, column([], kind))["f"].shape == (0, 2)
        assert arrays(feature, pa.table({"c": pa.chunked_array([], kind)}))["f_lengths"].shape == (0,)

    @given(
        st.lists(st.none() | st.lists(st.none() | st.integers(-5, 5), min_size=2, max_size=2), max_size=12),
        st.sampled_from(["list_", "large_list", "list_view", "large_list_view", "fixed"]),
        st.lists(st.integers(0, 12), max_size=3),
        st.integers(1, 3),
    )
    def test_kinds_of_lists_and_cuts_do_not_matter(
        self, lists: list[list[int | None] | None], kind: str, cuts: list[int], max_len: int
    ) -> None:
        list_type = pa.list_(pa.int64(), 2) if kind == "fixed" else getattr(pa, kind)(pa.int64())
        made = arrays(Ragged("c", max_len=max_len), in_chunks(column(lists, list_type), cuts))
        kept = [[value or 0 for value in (values or [])][:max_len] for values in lists]
        assert made["f"].tolist() == [values + [0] * (max_len - len(values)) for values in kept]
        assert made["f_lengths"].tolist() == [len(values) for values in kept]

    @given(
        st.lists(st.none() | st.lists(st.integers(0, 9), max_size=6), max_size=12),
        st.lists(st.integers(0, 12), max_size=3),
    )
    def test_uneven_lists(self, lists: list[list[int] | None], cuts: list[int]) -> None:
        made = only(Ragged("c", max_len=4, dtype="uint8"), in_chunks(column(lists, pa.list_(pa.int64())), cuts))
        assert made.tolist() == [((values or []) + [0] * 4)[:4] for values in lists]

    @given(
        st.lists(st.none() | st.lists(st.none() | st.integers(0, 9), max_size=6), max_size=12),
        st.sampled_from(["list_", "large_list", "list_view", "large_list_view"]),
        st.lists(st.integers(0, 12), max_size=3),
        st.none() | st.integers(1, 6),
        st.sampled_from(["uint8", "int64", "float32"]),
    )
    def test_lists_without_padding(
        self, lists: list[list[int | None] | None], kind: str, cuts: list[int], max_len: int | None, dtype: str
    ) -> None:
        feature = Ragged("c", max_len=max_len, dtype=dtype, padded=False)
        made = arrays(feature, in_chunks(column(lists, getattr(pa, kind)(pa.int64())), cuts))
        kept = [[value or 0 for value in (values or [])][:max_len] for values in lists]
        assert made[f"{LIST_VALUES}f"].tolist() == sum(kept, [])
        assert made[f"{LIST_VALUES}f"].dtype == dtype
        assert np.diff(made[f"{LIST_OFFSETS}f"]).tolist() == [len(values) for values in kept]
        assert made[f"{LIST_OFFSETS}f"].dtype == np.int32 and made[f"{LIST_OFFSETS}f"][0] == 0

    def test_values_hidden_under_a_null_list_are_not_read(self) -> None:
        hidden = pa.ListArray.from_arrays(pa.array([0, 2, 3]), pa.array([8, 9, 1]), mask=pa.array([True, False]))
        made = arrays(Ragged("c", max_len=2), pa.table({"c": hidden}))
        assert made["f"].tolist() == [[0, 0], [1, 0]]
        assert made["f_lengths"].tolist() == [0, 1]
        made = arrays(Ragged("c", padded=False), pa.table({"c": hidden}))
        assert (made[f"{LIST_VALUES}f"].tolist(), made[f"{LIST_OFFSETS}f"].tolist()) == ([1], [0, 0, 1])

    def test_more_values_than_offsets_can_count_are_refused(self) -> None:
        assert list_offsets("f", np.array([2**31 - 1, 0], np.int32)).tolist() == [0, 2**31 - 1, 2**31 - 1]
        with pytest.raises(TransformFailed, match="found 2147483648 values in a row group of 2 rows"):
            list_offsets("f", np.array([2**31 - 1, 1], np.int32))

    @pytest.mark.parametrize(
        ("kind", "message"),
        [
            (pa.int64(), "It takes lists"),
            (pa.list_(pa.list_(pa.int64())), "not of lists"),
            (pa.list_(pa.string()), "need buckets"),
            (pa.list_(pa.float32()), "fractions"),
            (pa.map_(pa.string(), pa.int64()), "It takes lists"),
        ],
    )
    def test_other_types_are_refused(self, kind: pa.DataType, message: str) -> None:
        with pytest.raises(WrongType, match=message):
            Ragged("c", max_len=2).check("f", {"c": kind})

    def test_floats_are_not_hashed(self) -> None:
        with pytest.raises(WrongType, match="Floats"):
            Ragged("c", max_len=2, buckets=9).check("f", {"c": pa.list_(pa.float32())})

    @pytest.mark.parametrize(
        "options",
        [
            {"max_len": 0},
            {"max_len": 1.5},
            {"max_len": 2, "buckets": 1},
            {"max_len": 2, "buckets": 1000, "dtype": "int8"},
            {"max_len": 2, "buckets": 9, "dtype": "float32"},
            {"max_len": 2, "buckets": 2**31 + 1, "dtype": "int32"},
            {},
            {"padded": False, "max_len": 0},
            {"padded": "no"},
        ],
    )
    def test_impossible_options_are_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidOption):
            Ragged("c", **options)


class TestLabel:
    @pytest.mark.parametrize("kind", [pa.int8(), pa.uint64(), pa.float64(), pa.bool_(), pa.decimal128(5, 1)], ids=str)
    def test_is_one_number_per_row(self, kind: pa.DataType) -> None:
        zero, one = (decimal.Decimal(0), decimal.Decimal(1)) if pa.types.is_decimal(kind) else (0, 1)
        values = [False, True] if pa.types.is_boolean(kind) else [zero, one]
        label = only(Label("c"), in_chunks(column(values, kind), [1]))
        assert label.dtype == np.float32
        assert label.tolist() == [0, 1]

    def test_classes_may_stay_integers(self) -> None:
        label = only(Label("c", dtype="int64"), column([3, 1], pa.int8()))
        assert label.dtype == np.int64
        assert label.tolist() == [3, 1]

    def test_nulls_are_counted_and_the_first_row_named(self) -> None:
        with pytest.raises(NullLabel, match="2 nulls in column 'c', the first in row 3") as caught:
            only(Label("c"), in_chunks(column([1, 0, 1, None, None], pa.int8()), [2]))
        assert (caught.value.nulls, caught.value.first_row) == (2, 3)

    @pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_nan_and_infinities_are_as_null(self, kind: pa.DataType, dtype: str) -> None:
        for bad in (None, math.nan, math.inf, -math.inf):
            table = in_chunks(pa.table({"c": pa.array([0.0, bad, 1.0], pa.float64()).cast(kind)}), [1])
            with pytest.raises(
                NullLabel, match="1 (nulls|NaN|infinite values as .*) in column 'c', the first in row 1"
            ):
                only(Label("c", dtype=dtype), table)

    def test_a_number_that_the_dtype_cannot_hold_is_an_infinity(self) -> None:
        with pytest.raises(NullLabel, match="1 infinite values as float32 in column 'c', the first in row 2"):
            only(Label("c"), column([1.0, 2.0, 1e300], pa.float64()))
        assert only(Label("c", dtype="float64"), column([1e300], pa.float64())).tolist() == [1e300]

    def test_each_kind_is_counted(self) -> None:
        values = pa.array([1.0, math.nan, math.nan, math.inf, None])
        with pytest.raises(NullLabel, match="1 nulls and 2 NaN and 1 infinite values as float32") as caught:
            only(Label("c"), pa.table({"c": values}))
        assert (caught.value.nulls, caught.value.nans, caught.value.infinite, caught.value.first_row) == (1, 2, 1, 1)

    def test_no_rows(self) -> None:
        assert only(Label("c"), column([], pa.int8())).shape == (0,)
        assert only(Label("c"), column([], pa.float64())).shape == (0,)

    @pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int8(), pa.string()), pa.date32()], ids=str)
    def test_other_types_are_refused(self, kind: pa.DataType) -> None:
        with pytest.raises(WrongType, match="map classes to numbers"):
            Label("c").check("f", {"c": kind})

    def test_fractions_do_not_become_classes(self) -> None:
        with pytest.raises(WrongType, match="fractions"):
            Label("c", dtype="int64").check("f", {"c": pa.float32()})
