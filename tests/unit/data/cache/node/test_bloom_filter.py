"""Bloom filters of blocks: no false negatives, few false positives, few bytes."""

from __future__ import annotations

import hashlib

from forebay.data.cache.node.bloom_filter import BloomFilter


def key(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()[:40]


def test_says_yes_to_all_it_was_made_of_and_rarely_to_others() -> None:
    held = [key(number) for number in range(5_000)]
    summary = BloomFilter.of(held)
    assert all(one in summary for one in held)
    wrong = sum(key(number) in summary for number in range(5_000, 45_000))
    assert wrong < 5, "1 in 150,000: a lookup asks 1,000 filters"
    assert len(summary.bits) == 4 * len(held)


def test_nothing_and_one() -> None:
    assert key(1) not in BloomFilter.of([])
    assert key(1) in BloomFilter.of([key(1)])


def test_equal_for_equal_keys_in_any_order() -> None:
    keys = [key(number) for number in range(100)]
    assert BloomFilter.of(keys) == BloomFilter.of(keys[::-1]) != BloomFilter.of(keys[1:])
