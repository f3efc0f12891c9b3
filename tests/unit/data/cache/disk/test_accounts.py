"""Accounts: used bytes follow from additions and removals in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.data.cache.disk.accounts import CacheUsage, Reservation, charge, smallest_quota

reservations = st.builds(
    Reservation,
    key=st.text("0123456789abcdef", min_size=40, max_size=40),
    dataset=st.sampled_from(["a", "b", "c"]),
    bytes=st.integers(0, 1 << 40),
)


@given(st.lists(reservations, unique_by=lambda reservation: reservation.key), st.randoms())
def test_what_was_added_can_be_removed(blocks: list[Reservation], random: object) -> None:
    usage = empty = CacheUsage()
    for block in blocks:
        usage = usage.add(block, now=1.0)
    assert usage.num_blocks == len(blocks)
    assert usage.used_bytes == empty.used_bytes + sum(charge(block.bytes) for block in blocks)
    random.shuffle(blocks)  # type: ignore[attr-defined]
    for block in blocks:
        usage = usage.remove(block)
    assert usage == empty


@given(st.lists(reservations, unique_by=lambda reservation: reservation.key))
def test_reservations_count_until_released(found: list[Reservation]) -> None:
    usage = CacheUsage()
    for reservation in found:
        usage = usage.reserve(reservation.key, reservation).reserve(reservation.key, reservation)
    assert usage.reserved_bytes == sum(charge(reservation.bytes) for reservation in found)
    assert usage.used_bytes == CacheUsage().used_bytes + usage.reserved_bytes
    for reservation in found:
        usage = usage.release(reservation.key).release(reservation.key)
    assert usage == CacheUsage()


def test_a_block_costs_the_same_reserved_and_stored() -> None:
    reservation = Reservation(key="0" * 40, dataset="a", bytes=5000)
    assert (
        CacheUsage().reserve("x", reservation).used_bytes
        == CacheUsage().add(reservation, now=0.0).used_bytes
        == smallest_quota(5000)
    )


def test_whole_pages_are_charged() -> None:
    assert charge(1) == charge(4096) < charge(4097)


def test_data_set_remembers_its_first_block() -> None:
    usage = (
        CacheUsage()
        .add(Reservation(key="0", dataset="a", bytes=1), now=5.0)
        .add(Reservation(key="1", dataset="a", bytes=1), now=9.0)
    )
    assert usage.datasets["a"].created_at == 5.0
    assert usage.without_dataset("a") == CacheUsage()
