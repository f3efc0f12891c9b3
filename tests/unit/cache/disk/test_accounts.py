"""The accounts balance: used bytes follow from what came and went, in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.cache.disk.accounts import Books, Claim, charge, smallest_quota

claims = st.builds(
    Claim,
    key=st.text("0123456789abcdef", min_size=40, max_size=40),
    dataset=st.sampled_from(["a", "b", "c"]),
    bytes=st.integers(0, 1 << 40),
)


@given(st.lists(claims, unique_by=lambda claim: claim.key), st.randoms())
def test_what_was_added_can_be_removed(blocks: list[Claim], random: object) -> None:
    books = empty = Books()
    for block in blocks:
        books = books.add(block, now=1.0)
    assert books.num_blocks == len(blocks)
    assert books.used_bytes == empty.used_bytes + sum(charge(block.bytes) for block in blocks)
    random.shuffle(blocks)  # type: ignore[attr-defined]
    for block in blocks:
        books = books.remove(block)
    assert books == empty


@given(st.lists(claims, unique_by=lambda claim: claim.key))
def test_claims_count_until_released(found: list[Claim]) -> None:
    books = Books()
    for claim in found:
        books = books.claim(claim.key, claim).claim(claim.key, claim)
    assert books.claimed_bytes == sum(charge(claim.bytes) for claim in found)
    assert books.used_bytes == Books().used_bytes + books.claimed_bytes
    for claim in found:
        books = books.release(claim.key).release(claim.key)
    assert books == Books()


def test_a_block_costs_the_same_claimed_and_stored() -> None:
    claim = Claim(key="0" * 40, dataset="a", bytes=5000)
    assert Books().claim("x", claim).used_bytes == Books().add(claim, now=0.0).used_bytes == smallest_quota(5000)


def test_whole_pages_are_charged() -> None:
    assert charge(1) == charge(4096) < charge(4097)


def test_data_set_remembers_its_first_block() -> None:
    books = (
        Books().add(Claim(key="0", dataset="a", bytes=1), now=5.0).add(Claim(key="1", dataset="a", bytes=1), now=9.0)
    )
    assert books.datasets["a"].created_at == 5.0
    assert books.without_dataset("a") == Books()
