"""Accounts: used bytes follow from blocks, reservations and quarantined files."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.data.cache.disk.accounts import CacheUsage, DatasetUse, Reservation, charge, smallest_quota, whole_pages

sizes = st.lists(st.integers(0, 1 << 40))


def use_of(found: list[int]) -> DatasetUse:
    return DatasetUse(dataset="a", blocks=len(found), bytes=sum(map(whole_pages, found)), created_at=1.0)


@given(sizes, sizes, sizes)
def test_everything_below_the_directory_is_charged(
    blocks: list[int], reserved: list[int], quarantined: list[int]
) -> None:
    reservations = {
        str(number): Reservation(key="0" * 40, dataset="a", bytes=size) for number, size in enumerate(reserved)
    }
    files = {str(number): size for number, size in enumerate(quarantined)}
    usage = CacheUsage(datasets={"a": use_of(blocks)}, reservations=reservations, quarantined=files)
    assert usage.num_blocks == len(blocks)
    assert usage.reserved_bytes == sum(map(charge, reserved))
    assert usage.used_bytes == CacheUsage().used_bytes + sum(map(charge, [*blocks, *reserved, *quarantined]))


def test_a_block_costs_the_same_reserved_and_stored() -> None:
    reservation = Reservation(key="0" * 40, dataset="a", bytes=5000)
    assert (
        CacheUsage(reservations={"x": reservation}).used_bytes
        == CacheUsage(datasets={"a": use_of([5000])}).used_bytes
        == smallest_quota(5000)
    )


def test_whole_pages_are_charged() -> None:
    assert charge(1) == charge(4096) < charge(4097)
