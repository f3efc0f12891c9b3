"""Column chunks that the project's own kernels may decode, by what the footer states."""

from __future__ import annotations

from typing import NamedTuple

from forebay.data.parquet.fetch import Pages

UNCOMPRESSED, SNAPPY = 0, 1
"""Parquet's numbers of codecs."""


class Chunk(NamedTuple):
    """Fetched column chunk: its address, its bytes, and whether Snappy compressed it."""

    address: int
    num_bytes: int
    is_snappy: bool


def readable_chunk(pages: Pages, place: int) -> Chunk | None:
    """Column chunk `place` of the fetched ones. None if it was not fetched as a whole, or has another codec.

    None also in a process that has not loaded the kernels: loading takes longer than a few row groups do.
    """
    if pages.footer.codecs is None:
        return None
    codec = pages.footer.codecs[pages.index, pages.leaves[place]]
    address = int(pages.file.addresses(pages.places[place : place + 1])[0])
    if codec not in (UNCOMPRESSED, SNAPPY) or not address:
        return None
    start, stop = pages.places[place].tolist()
    return Chunk(address, stop - start, bool(codec == SNAPPY))
