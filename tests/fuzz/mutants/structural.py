"""Damage to Parquet files that keeps their structure well-formed, unless it breaks it on purpose."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import bytewise
import numpy as np
import thrift
from files import Original, Page

Damage = Callable[[np.random.Generator, Original, Original], bytes]
"""Takes the file to damage and another one."""

_NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    127,
    128,
    1 << 15,
    (1 << 31) - 1,
    1 << 31,
    -(1 << 31),
    1 << 40,
    (1 << 63) - 1,
    -(1 << 63),
)


def with_footer(content: bytes, footer_at: int, footer: bytes) -> bytes:
    return content[:footer_at] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def change_the_footer(rng: np.random.Generator, original: Original, other: Original) -> bytes:
    """Change one to three values of the footer, at any depth."""
    footer = original.footer()
    for _ in range(int(rng.integers(1, 4))):
        _change(rng, footer)
    return with_footer(original.content, original.footer_at, thrift.write(footer))


def change_a_chunk(rng: np.random.Generator, original: Original, other: Original) -> bytes:
    """Change the footer's entry for one column of one row group, which holds sizes and offsets."""
    footer = original.footer()
    group = _any(rng, footer.get(4).values)
    chunk = _any(rng, group.get(1).values)
    _change(rng, _any(rng, [chunk.get(3), chunk.get(3), group]))
    return with_footer(original.content, original.footer_at, thrift.write(footer))


def change_the_schema(rng: np.random.Generator, original: Original, other: Original) -> bytes:
    footer = original.footer()
    _change(rng, _any(rng, footer.get(2).values))
    return with_footer(original.content, original.footer_at, thrift.write(footer))


def change_the_arrow_schema(rng: np.random.Generator, original: Original, other: Original) -> bytes:
    """Change the Arrow schema: base64 of a flatbuffer, from which Arrow restores its own types."""
    footer = original.footer()
    for each in (footer.get(5) or thrift.List(0, [])).values:
        value = bytearray(each.get(2))
        for _ in range(int(rng.integers(1, 6))):
            value[int(rng.integers(len(value)))] = int(rng.choice(list(b"ABCDEFGHabcdefgh0123456789+/=")))
        each.set(2, bytes(value))
    return with_footer(original.content, original.footer_at, thrift.write(footer))


def take_the_footer_of_another(rng: np.random.Generator, original: Original, other: Original) -> bytes:
    return original.content[: original.footer_at] + other.content[other.footer_at :]


def swap_row_groups(rng: np.random.Generator, original: Original, other: Original) -> bytes:
    footer = original.footer()
    groups = footer.get(4).values
    left, right = rng.choice(len(groups), 2, replace=False)
    groups[left], groups[right] = groups[right], groups[left]
    return with_footer(original.content, original.footer_at, thrift.write(footer))


def swap_chunks(rng: np.random.Generator, original: Original, other: Original) -> bytes:
    """Swap the footer's entries of two columns, or only their offsets: each is then read with the other's type."""
    footer = original.footer()
    chunks = _any(rng, footer.get(4).values).get(1).values
    left, right = (int(number) for number in rng.choice(len(chunks), 2, replace=False))
    if rng.random() < 0.3:
        chunks[left], chunks[right] = chunks[right], chunks[left]
    else:
        for number in (6, 7, 9, 11):
            mine, its = chunks[left].get(3).get(number), chunks[right].get(3).get(number)
            if mine is not None and its is not None:
                chunks[left].get(3).set(number, its)
                chunks[right].get(3).set(number, mine)
    return with_footer(original.content, original.footer_at, thrift.write(footer))


def swap_pages(rng: np.random.Generator, original: Original, other: Original) -> bytes:
    """Swap pages of two columns, with or without their headers."""
    one, two = (original.pages[number] for number in sorted(rng.choice(len(original.pages), 2, replace=False)))
    begin = (lambda page: page.head) if rng.random() < 0.5 else (lambda page: page.start)
    swapped = _replace(original, (begin(two), two.stop), original.content[begin(one) : one.stop])
    # Everything before it stays where it was.
    footer_at = len(swapped) - 8 - int.from_bytes(swapped[-8:-4], "little")
    moved = _Moved(swapped, footer_at)
    return _replace(moved, (begin(one), one.stop), original.content[begin(two) : two.stop])


def change_a_page_header(rng: np.random.Generator, original: Original, other: Original) -> bytes:
    page = _any(rng, original.pages)
    header = copy.deepcopy(page.header)
    _change(rng, header)
    return _replace(original, (page.head, page.start), thrift.write(header))


def lie_about_a_page_size(rng: np.random.Generator, original: Original, other: Original) -> bytes:
    page = _any(rng, original.pages)
    header = copy.deepcopy(page.header)
    header.set(int(rng.choice([2, 3])), int(_any(rng, _NUMBERS)))
    return _replace(original, (page.head, page.start), thrift.write(header))


def damage_a_page(rng: np.random.Generator, original: Original, other: Original) -> bytes:
    """Damage the content of a page in place."""
    page = _any(rng, original.pages)
    content = original.content[page.start : page.stop]
    if not content:
        return original.content
    damage = _any(rng, [bytewise.flip_a_bit, bytewise.flip_bits, bytewise.zero_a_range, bytewise.scramble_a_range,
                        bytewise.overwrite_a_length, bytewise.splice])  # fmt: skip
    damaged = damage(rng, content)[: len(content)]
    return original.content[: page.start] + damaged + original.content[page.start + len(damaged) :]


def lie_at_the_start_of_a_page(rng: np.random.Generator, original: Original, other: Original) -> bytes:
    """Damage the first bytes, which hold lengths, bit widths and counts."""
    page = _any(rng, original.pages)
    size = min(12, page.stop - page.start)
    if not size:
        return original.content
    damaged = bytewise.overwrite_a_length(rng, original.content[page.start : page.start + size])[:size]
    return original.content[: page.start] + damaged + original.content[page.start + len(damaged) :]


def lie_about_the_footer_size(rng: np.random.Generator, original: Original, other: Original) -> bytes:
    size = int(rng.choice([0, 1, 7, 8, len(original.content), (1 << 31) - 1, 1 << 31, (1 << 32) - 1]))
    if rng.random() < 0.5:
        size = len(original.content) - original.footer_at - 8 + int(rng.integers(-20, 20))
    return original.content[:-8] + size.to_bytes(4, "little") + b"PAR1"


class _Moved(Original):
    """Content that was already changed once, with its new footer position."""

    def __init__(self, content: bytes, footer_at: int) -> None:
        object.__setattr__(self, "content", content)
        object.__setattr__(self, "footer_at", footer_at)


def _replace(original: Original, place: tuple[int, int], new: bytes) -> bytes:
    """Replace the bytes at `place`. The new footer has the moved offsets."""
    start, stop = place
    grown = len(new) - (stop - start)
    footer = original.footer()
    for group in footer.get(4).values:
        for chunk in group.get(1).values:
            facts = chunk.get(3)
            begin = facts.get(11) or facts.get(9)
            if begin <= start < begin + facts.get(7):
                facts.set(7, facts.get(7) + grown)
            for number in (9, 11):
                if (offset := facts.get(number)) is not None and offset > start:
                    facts.set(number, offset + grown)
    pages = original.content[:start] + new + original.content[stop : original.footer_at]
    return with_footer(pages, len(pages), thrift.write(footer))


def _change(rng: np.random.Generator, root: thrift.Struct) -> None:
    """Change one value somewhere below `root`."""
    _any(rng, list(_changes(rng, root)))()


def _changes(rng: np.random.Generator, struct: thrift.Struct) -> Iterator[Callable[[], None]]:
    for position, each in enumerate(struct.fields):
        yield lambda each=each: each.__setitem__(2, _other(rng, each[1], each[2]))
        if rng.random() < 0.1:
            yield lambda position=position: struct.fields.pop(position)
            yield lambda each=each: struct.fields.append(copy.deepcopy(each))
        if each[1] == thrift.STRUCT:
            yield from _changes(rng, each[2])
        elif each[1] == thrift.LIST:
            yield lambda values=each[2].values: _reorder(rng, values)
            for value in each[2].values:
                if isinstance(value, thrift.Struct):
                    yield from _changes(rng, value)


def _other(rng: np.random.Generator, kind: int, value: Any) -> Any:
    if kind in thrift.INTEGERS:
        return int(
            _any(rng, [*_NUMBERS, value + 1, value - 1, value * 2, value // 2, value ^ (1 << int(rng.integers(31)))])
        )
    if kind == thrift.BINARY:
        return bytewise.scramble_a_range(rng, value) if value and rng.random() < 0.7 else b""
    if kind == thrift.LIST:
        _reorder(rng, value.values)
        if value.type in thrift.INTEGERS and value.values:
            value.values[int(rng.integers(len(value.values)))] = int(_any(rng, _NUMBERS))
        return value
    if kind in {thrift.TRUE, thrift.FALSE}:
        return not value
    return value if kind == thrift.STRUCT else rng.bytes(8) if kind == thrift.DOUBLE else int(rng.integers(256))


def _reorder(rng: np.random.Generator, values: list[Any]) -> None:
    if not values:
        return
    place = int(rng.integers(len(values)))
    match int(rng.integers(4)):
        case 0:
            values.pop(place)
        case 1:
            values.append(copy.deepcopy(values[place]))
        case 2:
            values.append(values.pop(place))
        case 3:
            values.clear()


def _any(rng: np.random.Generator, choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


ALL: tuple[Damage, ...] = (
    change_the_footer,
    change_a_chunk,
    change_the_schema,
    change_the_arrow_schema,
    take_the_footer_of_another,
    swap_row_groups,
    swap_chunks,
    swap_pages,
    change_a_page_header,
    lie_about_a_page_size,
    damage_a_page,
    lie_at_the_start_of_a_page,
    lie_about_the_footer_size,
)

__all__ = ["ALL", "Damage", "Page"]
