"""Golden values: these hashes decide the cached id of a value. A change needs a new LAYOUT_VERSION."""

from __future__ import annotations

import numpy as np
import pytest

from forebay.data.transform.features.hashing import bucket_ids, column_salt, hash_integers, hash_texts

INTEGERS = np.array([0, 1, 2, 2**63, 2**64 - 1], np.uint64)


def test_the_salt_of_a_column_is_the_xxh64_of_its_name() -> None:
    assert column_salt("user") == 0x3DA0FD9C44CFC9EE
    assert column_salt("item") == 0x5FE193BB4B6B9CD0


def test_integers_without_salt_are_the_published_splitmix64_sequence() -> None:
    # The first output of the reference implementation for the seeds 0 and 1234567.
    assert hash_integers(np.array([0, 1234567], np.uint64), 0).tolist() == [0xE220A8397B1DCDAF, 6457827717110365317]


def test_integers_with_salt_are_pinned() -> None:
    assert hash_integers(INTEGERS, column_salt("user")).tolist() == [
        0xA3B14CB6CA6CD073,
        0x389E7D4D9213B659,
        0xE0C3CD6FE6E2C6D5,
        0xBF08F07BB92120A9,
        0xF2CB1A5D586E7A5A,
    ]


def test_texts_are_pinned() -> None:
    texts = [b"", b"a", "ä".encode()]
    assert hash_texts(texts, column_salt("user"), 3).tolist() == [
        0xE52E37CC82EDFEF1,
        0x48FB7A236E2FFFAE,
        0x98CD0F548199648C,
    ]


def test_buckets_are_pinned_and_leave_0_to_null() -> None:
    hashes = hash_integers(INTEGERS, column_salt("user"))
    assert bucket_ids(hashes, 1000).tolist() == [710, 790, 604, 409, 867]
    assert bucket_ids(hashes, 2).tolist() == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("buckets", [2, 3, 1000, 2**31, 2**63 - 1])
def test_buckets_are_the_remainder_of_the_hash(buckets: int) -> None:
    hashes = np.random.default_rng(0).integers(0, 2**64, 1000, dtype=np.uint64)
    assert bucket_ids(hashes, buckets).tolist() == [1 + int(h) % (buckets - 1) for h in hashes]


def test_values_spread_over_buckets() -> None:
    ids = bucket_ids(hash_integers(np.arange(100_000, dtype=np.uint64), column_salt("user")), 101)
    counts = np.bincount(ids, minlength=101)[1:]
    assert counts.min() > 850
    assert counts.max() < 1150
