"""Accounts: used bytes follow from additions and removals in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.cache.disk.accounts import CacheUsage, Reservation, charge, smallest_quota

claims = st.builds(
    Reservation,
    key=st.text("0123456789abcdef", min_size=40, max_size=40),
    dataset=st.sampled_from(["a", "b", "c"]),
    bytes=st.integers(0, 1 << 40),
)


@given(st.lists(claims, unique_by=lambda claim: claim.key), st.randoms())
def test_what_was_added_can_be_removed(blocks: list[Reservation], random: object) -> None:
    books = empty = CacheUsage()
    for block in blocks:
        books = books.add(block, now=1.0)
    assert books.num_blocks == len(blocks)
    assert books.used_bytes == empty.used_bytes + sum(charge(block.bytes) for block in blocks)
    random.shuffle(blocks)  # type: ignore[attr-defined]
    for block in blocks:
        books = books.remove(block)
    assert books == empty


@given(st.lists(claims, unique_by=lambda claim: claim.key))
def test_claims_count_until_released(found: list[Reservation]) -> None:
    books = CacheUsage()
    for claim in found:
        books = books.claim(claim.key, claim).claim(claim.key, claim)
    assert books.claimed_bytes == sum(charge(claim.bytes) for claim in found)
    assert books.used_bytes == CacheUsage().used_bytes + books.claimed_bytes
    for claim in found:
        books = books.release(claim.key).release(claim.key)
    assert books == CacheUsage()


def test_a_block_costs_the_same_claimed_and_stored() -> None:
    claim = Reservation(key="0" * 40, dataset="a", bytes=5000)
    assert (
        CacheUsage().claim("x", claim).used_bytes == CacheUsage().add(claim, now=0.0).used_bytes == smallest_quota(5000)
    )


def test_whole_pages_are_charged() -> None:
    assert charge(1) == charge(4096) < charge(4097)


def test_data_set_remembers_its_first_block() -> None:
    books = (
        CacheUsage()
        .add(Reservation(key="0", dataset="a", bytes=1), now=5.0)
        .add(Reservation(key="1", dataset="a", bytes=1), now=9.0)
    )
    assert books.datasets["a"].created_at == 5.0
    assert books.without_dataset("a") == CacheUsage()
