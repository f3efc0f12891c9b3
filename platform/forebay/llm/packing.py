"""Packing of documents into rows of equal length. Pure functions.

A packed token holds its id in bits 0 to 23. Bit 24 marks the first token of a document, bit 25 a target, bit 26 the
first token of a desired answer. So ids, labels, positions and the borders of documents take 4 bytes per token together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from forebay.errors import InvalidOption, whole_number
from forebay.llm.chat.documents import Document

Packing = Literal["bfd", "wrapped", "none"]
"""Best fit decreasing that fills rows up, documents end to end, or one document a row."""
Overflow = Literal["truncate", "split", "drop", "raise"]
"""Rule for a document that is longer than a row."""
Truncate = Literal["start", "end", "drop"]
"""Part of a longer document that is cut off. "drop" leaves the document out."""

ID_BITS = (1 << 24) - 1
START = 1 << 24
TARGET = 1 << 25
DESIRED = 1 << 26

PackedRows = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """Layout of rows of `seq_len` tokens.

    `pad` is the token id that fills the rest of a row.

    Raises `InvalidOption` for a length below 2, and for unknown rules.
    """

    seq_len: int
    packing: Packing = "bfd"
    overflow: Overflow = "truncate"
    pad: int = 0
    truncate: Truncate = "end"

    def __post_init__(self) -> None:
        whole_number("seq_len", self.seq_len, least=2)
        whole_number("pad", self.pad, most=ID_BITS)
        for option, known in (("packing", Packing), ("overflow", Overflow), ("truncate", Truncate)):
            value = getattr(self, option)
            if value not in get_args(known):
                raise InvalidOption(
                    f"{option}={value!r} is unknown. Choose one of {', '.join(map(repr, get_args(known)))}.",
                    option=option,
                )
        if self.overflow != "truncate" and self.truncate != "end":
            raise InvalidOption(
                f"truncate={self.truncate!r} says what overflow='truncate' cuts off, and overflow={self.overflow!r} "
                "cuts nothing. Leave one of them out.",
                option="truncate",
            )


def arrange(documents: Sequence[Document], layout: RowLayout) -> PackedRows:
    """Pack `documents` into rows, int32 [rows, seq_len].

    Each document fits into a row, unless packing is "wrapped".

    The first token of a document is never a target. The rest of a row is one more document, without targets.
    """
    if layout.packing == "wrapped":
        return _wrap(documents, layout)
    lengths = [len(document.ids) for document in documents]
    rows = (
        fullest_rows(lengths, layout.seq_len) if layout.packing == "bfd" else [[each] for each in range(len(lengths))]
    )
    packed = np.full((len(rows), layout.seq_len), layout.pad, np.int32)
    for row, members in zip(packed, rows, strict=True):
        stop = 0
        for number in members:
            start, stop = stop, stop + lengths[number]
            row[start:stop] = _packed(documents[number])
        if stop < layout.seq_len:
            row[stop] |= START
    return packed


def fullest_rows(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Assign documents to rows, as full as possible.

    Lengths are 1 to `room`.

    A row begins with the longest document that is left. The others of it are those whose lengths add up to the most,
    ties by number. Best fit decreasing is taken where it needs fewer rows. Rows are in the order of their first
    documents, the documents of a row in their own order. Fill is 0.999 for 2,000 lengths with a mean of a quarter of
    `room`, where best fit decreasing has 0.988.
    """
    # Numbers of the documents of each length, the smallest last. Longest lengths first.
    left: dict[int, list[int]] = {length: [] for length in sorted(set(lengths), reverse=True)}
    for number in reversed(range(len(lengths))):
        left[lengths[number]].append(number)
    rows = list[list[int]]()
    while left:
        longest = next(iter(left))
        row = [left[longest].pop()]
        counts = {length: len(numbers) for length, numbers in left.items()}
        row += [left[length].pop() for length in _largest_sum(counts, room - longest)]
        left = {length: numbers for length, numbers in left.items() if numbers}
        rows.append(sorted(row))
    other = best_fit(lengths, room)
    return other if len(other) < len(rows) else sorted(rows, key=lambda row: row[0])


def best_fit(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Assign documents to rows by best fit, longest first.

    Lengths are 1 to `room`. Ties are broken by number.

    Rows and their documents are in the order of `fullest_rows`.
    """
    # Row numbers by the room that they have left. Bit n of `some` says whether there is a row with n left.
    open_rows: list[list[int]] = [[] for _ in range(room + 1)]
    some, rows = 0, list[list[int]]()
    for number in sorted(range(len(lengths)), key=lambda each: (-lengths[each], each)):
        length = lengths[number]
        left, row = room, len(rows)
        if fitting := some >> length:
            left = length + (fitting & -fitting).bit_length() - 1
            row = open_rows[left].pop()
            if not open_rows[left]:
                some &= ~(1 << left)
        else:
            rows.append([])
        rows[row].append(number)
        if rest := left - length:
            open_rows[rest].append(row)
            some |= 1 << rest
    return sorted((sorted(members) for members in rows), key=lambda members: members[0])


def num_targets(packed: PackedRows) -> NDArray[np.int32]:
    """Number of targets of each row, int32 [rows]."""
    counts: NDArray[np.int32] = ((packed & TARGET) != 0).sum(axis=1, dtype=np.int32)
    return counts


def _largest_sum(counts: Mapping[int, int], room: int) -> list[int]:
    """Lengths with the largest sum up to `room`.

    Each length is used at most as often as it occurs.
    """
    # Bit n of `sums[i]` says whether the first i lengths that were tried can add up to n.
    sums, tried = [1], list[int]()
    for length, count in counts.items():
        reached, more, step = sums[-1], min(count, room // length), 1
        while more:
            step = min(step, more)
            reached |= (reached << (length * step)) & ((2 << room) - 1)
            more, step = more - step, 2 * step
        sums.append(reached)
        tried.append(length)
        if reached >> room:
            break
    total, chosen = sums[-1].bit_length() - 1, list[int]()
    for length, before in zip(reversed(tried), reversed(sums[:-1]), strict=True):
        while not (before >> total) & 1:
            chosen.append(length)
            total -= length
    return chosen


def _packed(document: Document) -> PackedRows:
    packed = document.ids | np.where(document.is_target, TARGET, 0).astype(np.int32)
    for begin in (0, document.second or 0):
        packed[begin] = (packed[begin] & ~TARGET) | START
    if document.is_desired:
        packed[0] |= DESIRED
    return packed


def _wrap(documents: Sequence[Document], layout: RowLayout) -> PackedRows:
    line = np.concatenate([_packed(document) for document in documents] or [np.zeros(0, np.int32)])
    num_rows = -(-len(line) // layout.seq_len)
    packed = np.full(num_rows * layout.seq_len, layout.pad, np.int32)
    packed[: len(line)] = line
    if len(line) < len(packed):
        packed[len(line)] |= START
    rows = packed.reshape(num_rows, layout.seq_len)
    # Positions begin again at each row.
    rows[:, 0] = (rows[:, 0] & ~TARGET) | START
    return rows
