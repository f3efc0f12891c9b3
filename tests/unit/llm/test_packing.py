from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import InvalidOption
from forebay.llm.chat.documents import Document
from forebay.llm.packing import ID_BITS, START, TARGET, RowLayout, arrange, best_fit, fullest_rows, num_targets


def documents_of(lengths: list[int], seed: int = 0) -> list[Document]:
    rng = np.random.default_rng(seed)
    return [Document(rng.integers(1, 1 << 20, n).astype(np.int32), rng.random(n) < 0.5) for n in lengths]


def unpacked(rows: np.ndarray) -> list[tuple[tuple[int, ...], tuple[bool, ...]]]:
    """Ids and targets of the documents of all rows, in order, and of the rests."""
    found = []
    for row in rows:
        starts = [*np.flatnonzero(row & START), len(row)]
        for low, high in itertools.pairwise(starts):
            part = row[low:high]
            found.append((tuple((part & ID_BITS).tolist()), tuple(((part & TARGET) != 0).tolist())))
    return found


@given(st.integers(2, 40).flatmap(lambda room: st.tuples(st.just(room), st.lists(st.integers(1, room), max_size=60))))
def test_rows_hold_every_document_once(case: tuple[int, list[int]]) -> None:
    room, lengths = case
    for rows in (best_fit(lengths, room), fullest_rows(lengths, room)):
        assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
        assert all(sum(lengths[number] for number in row) <= room for row in rows)
        assert all(row == sorted(row) for row in rows)
        assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert len(rows) <= len(best_fit(lengths, room))


def test_best_fit_takes_the_row_with_the_least_room() -> None:
    assert best_fit([6, 3, 5, 4, 2], 9) == [[0, 1], [2, 3], [4]]
    assert best_fit([3, 3, 3], 3) == [[0], [1], [2]]


def test_rows_are_filled_up_by_any_number_of_documents() -> None:
    # Best fit puts 4 beside 5, and then no row has room for both of 3.
    assert fullest_rows([5, 4, 3, 3, 3, 2], 10) == [[0, 2, 5], [1, 3, 4]]
    assert len(best_fit([5, 4, 3, 3, 3, 2], 10)) == 3


@pytest.mark.parametrize(("room", "scale", "spread"), [(512, 64, 0.9), (256, 56, 0.4)])
def test_rows_are_nearly_full(room: int, scale: int, spread: float) -> None:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(scale), spread, 2000).astype(int), 1, room).tolist()
    assert np.mean(lengths) <= room / 4
    assert sum(lengths) / (len(fullest_rows(lengths, room)) * room) >= 0.998


@pytest.mark.parametrize("packing", ["bfd", "none"])
def test_documents_come_back_from_their_rows(packing: str) -> None:
    documents = documents_of([5, 8, 3, 2, 7, 1])
    rows = arrange(documents, RowLayout(seq_len=8, packing=packing, pad=7))  # type: ignore[arg-type]
    found = unpacked(rows)
    expected = {(tuple(each.ids.tolist()), (False, *(bool(mark) for mark in each.is_target[1:]))) for each in documents}
    rests = {each for each in found if each not in expected}
    assert expected <= set(found)
    assert all(set(ids) == {7} and not any(marks) for ids, marks in rests)
    assert len(rows) == (6 if packing == "none" else 4)
    assert num_targets(rows).sum() == sum(int(each.is_target[1:].sum()) for each in documents)


def test_wrapped_documents_lie_end_to_end_and_positions_begin_again() -> None:
    documents = [Document(each.ids, np.ones(len(each.ids), bool)) for each in documents_of([5, 9, 4])]
    rows = arrange(documents, RowLayout(seq_len=8, packing="wrapped"))
    line = np.concatenate([each.ids for each in documents])
    np.testing.assert_array_equal((rows.ravel() & ID_BITS)[:18], line)
    assert np.flatnonzero(rows.ravel() & START).tolist() == [0, 5, 8, 14, 16, 18]
    assert num_targets(rows).tolist() == [6, 6, 1]


def test_nothing_gives_no_rows() -> None:
    for packing in ("bfd", "wrapped", "none"):
        assert arrange([], RowLayout(seq_len=8, packing=packing)).shape == (0, 8)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"seq_len": 1}, "seq_len=1"),
        ({"seq_len": 8, "packing": "ffd"}, "packing='ffd' is unknown. Choose one of 'bfd', 'wrapped', 'none'"),
        ({"seq_len": 8, "overflow": "error"}, "overflow='error' is unknown"),
        ({"seq_len": 8, "pad": 1 << 24}, "pad"),
    ],
)
def test_unknown_layouts_are_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        RowLayout(**options)  # type: ignore[arg-type]
