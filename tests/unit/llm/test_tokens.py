from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from forebay.errors import InvalidOption
from forebay.llm.chat.documents import Document
from forebay.llm.packing import ID_BITS, RowLayout
from forebay.llm.tokens import TokenCounts, token_arrays, token_table


def document(length: int, first_target: int) -> Document:
    return Document(np.arange(1, length + 1, dtype=np.int32), np.arange(length) >= first_target)


DOCUMENTS = [document(4, 2), document(11, 2), document(9, 8), document(3, 3), document(8, 0)]


@pytest.mark.parametrize(
    ("overflow", "expected"),
    [
        ("truncate", {"documents": 3, "tokens": 20, "targets": 15, "truncated": 2, "without_targets": 2}),
        ("split", {"documents": 4, "tokens": 23, "targets": 17, "split": 2, "without_targets": 3}),
        ("drop", {"documents": 2, "tokens": 12, "targets": 9, "dropped": 2, "without_targets": 1}),
    ],
)
def test_long_documents_are_counted(overflow: str, expected: dict[str, int]) -> None:
    table, counts = token_table(DOCUMENTS, RowLayout(seq_len=8, overflow=overflow))  # type: ignore[arg-type]
    assert counts == TokenCounts(**expected, longest=11, rows=table.num_rows)
    assert sum(table["targets"].to_pylist()) == expected["targets"]


@pytest.mark.parametrize(
    ("truncate", "ids", "counts"),
    [("end", [1, 2, 3, 4], (1, 0)), ("start", [3, 4, 5, 6], (1, 0)), ("drop", None, (0, 1))],
)
def test_either_end_may_be_cut_off(truncate: Any, ids: list[int] | None, counts: tuple[int, int]) -> None:
    table, found = token_table([document(6, 2)], RowLayout(seq_len=4, truncate=truncate))
    assert (found.truncated, found.dropped) == counts
    rows = [(np.array(row) & ID_BITS).tolist() for row in table["tokens"].to_pylist()]
    assert rows == ([] if ids is None else [ids])


def test_what_is_cut_needs_a_cut() -> None:
    with pytest.raises(InvalidOption, match="truncate='start' says what overflow='truncate' cuts off"):
        RowLayout(seq_len=4, overflow="drop", truncate="start")


def test_overflow_may_be_an_error() -> None:
    with pytest.raises(InvalidOption, match="document 1 has 11 tokens and seq_len=8. Raise seq_len, or set overflow"):
        token_table(DOCUMENTS, RowLayout(seq_len=8, overflow="raise"))


def test_wrapped_loses_no_target() -> None:
    table, counts = token_table(DOCUMENTS, RowLayout(seq_len=8, packing="wrapped"))
    assert counts.tokens == 32 and counts.rows == 4
    # The first token of a document has nothing before it, nor has the first of a row: token 4 of the second document.
    assert counts.targets == 2 + 9 + 1 + 7 - 1
    assert table.num_rows == 4


def test_row_without_a_target_is_left_out_when_wrapped() -> None:
    line = Document(np.arange(1, 17, dtype=np.int32), np.arange(16) < 4)
    table, counts = token_table([line], RowLayout(seq_len=8, packing="wrapped"))
    assert (table.num_rows, counts.rows, counts.targets) == (1, 1, 3)


def test_table_becomes_arrays() -> None:
    table, counts = token_table(DOCUMENTS, RowLayout(seq_len=8))
    assert table.schema.field("tokens").type == pa.list_(pa.int32(), 8)
    (batch,) = table.to_batches()
    arrays = token_arrays(batch.slice(1))
    assert arrays["tokens"].shape == (counts.rows - 1, 8) and arrays["tokens"].dtype == np.int32
    np.testing.assert_array_equal(arrays["tokens"], np.stack(table["tokens"].to_numpy())[1:])
    np.testing.assert_array_equal(arrays["targets"], table["targets"].to_numpy()[1:])


def test_counts_add_up_and_read_well() -> None:
    both = TokenCounts(documents=100, rows=8, tokens=60, longest=5) + TokenCounts(documents=1, truncated=2, longest=3)
    assert both == TokenCounts(documents=101, rows=8, tokens=60, truncated=2, longest=5)
    assert both.text(8) == "101 documents in 8 rows of 8 tokens, fill 0.938, 0 targets, 2 truncated"
    assert TokenCounts.of({"documents": 3, "unknown": 1}) == TokenCounts(documents=3)
