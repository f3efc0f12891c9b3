from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.data.manifest.manifest import Manifest
from forebay.data.sources.scan import scan
from forebay.data.transform.features.groups import Categorical
from forebay.data.transform.features.vocabulary import Vocabulary
from forebay.data.transform.transform import Transform
from forebay.errors import InvalidOption, MissingColumn, WrongType

Write = Callable[..., Manifest]


@pytest.fixture
def written(tmp_path: Path) -> Write:
    """`written(c=values, ...) -> Manifest` of one file with two rows per row group."""

    def write(**columns: Any) -> Manifest:
        pq.write_table(pa.table(columns), tmp_path / "data.parquet", row_group_size=2)
        return scan(str(tmp_path))

    return write


def test_the_most_frequent_first_and_equals_in_rising_order(written: Write) -> None:
    manifest = written(c=["b", "a", None, "c", "c", "b", "b", "d"], n=[3, 2, 1, 3, 2, 9, None, 9])
    assert Vocabulary(["c", "n"]).fit(manifest) == {"c": ("b", "c", "a", "d"), "n": (2, 3, 9, 1)}


def test_rare_values_and_a_long_tail_can_be_left_out(written: Write) -> None:
    manifest = written(c=["b", "a", "c", "c", "b", "b"])
    assert Vocabulary("c", min_count=2).fit(manifest) == {"c": ("b", "c")}
    assert Vocabulary("c", max_size=1).fit(manifest) == {"c": ("b",)}
    assert Vocabulary("c", min_count=9).fit(manifest) == {"c": ()}


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.bool_(), [True, False, True], (True, False)),
        (pa.date32(), [datetime.date(1970, 1, 3)] * 2 + [datetime.date(1970, 1, 2)], (2, 1)),
        (pa.timestamp("ns", "UTC"), [1_000_000_001] * 2 + [7], (1_000_000_001, 7)),
        (pa.timestamp("us"), [5, 5, 7], (5, 7)),
        (pa.time32("ms"), [5, 5, 7], (5, 7)),
        (pa.binary(), [b"a", b"b", b"b"], (b"b", b"a")),
        (pa.binary(2), [b"aa", b"bb", b"bb"], (b"bb", b"aa")),
        (
            pa.decimal128(5, 2),
            [decimal.Decimal("1.50"), decimal.Decimal("2.50")],
            (decimal.Decimal("1.50"), decimal.Decimal("2.50")),
        ),
        (pa.dictionary(pa.int32(), pa.string()), ["b", "a", "b"], ("b", "a")),
        (pa.uint64(), [2**64 - 1, 2**64 - 1, 0], (2**64 - 1, 0)),
        (pa.int64(), [None, None, None], ()),
    ],
)
def test_what_is_fitted_can_be_looked_up(written: Write, kind: pa.DataType, values: list[Any], expected: Any) -> None:
    table = pa.table({"c": pa.array([*values, None], kind)})
    manifest = written(c=table["c"])
    vocabulary = Vocabulary("c").fit(manifest)
    assert vocabulary == {"c": expected}
    transform = Transform(ids=Categorical("c", vocabulary=vocabulary))
    transform.check(manifest)
    ids = transform.apply(table).arrays["ids"][:, 0].tolist()
    assert ids[-1] == 0
    assert set(ids) - {0} == {position + 2 for position in range(len(expected))}


def test_columns_are_checked_before_reading(written: Write) -> None:
    manifest = written(c=["a"], f=[1.5], n=[[1]])
    with pytest.raises(MissingColumn, match=r"Vocabulary asks for column 'C'.*Did you mean"):
        Vocabulary(["C"]).fit(manifest)
    with pytest.raises(WrongType, match="Floats"):
        Vocabulary(["c", "f"]).fit(manifest)
    with pytest.raises(WrongType, match="list"):
        Vocabulary(["n"]).fit(manifest)
    with pytest.raises(InvalidOption, match=r"manifest='clicks': give what fb\.scan"):
        Vocabulary("c").fit("clicks")  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"min_count": 0}, {"max_size": 0}])
def test_options_that_keep_nothing_are_refused(written: Write, options: dict[str, int]) -> None:
    with pytest.raises(InvalidOption):
        Vocabulary("c", **options)
