"""Any plain values: equal ones have one digest, and values of another type or content another."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.data.transform.fingerprint.values import canonical, value_identity

leaves = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text(), st.binary()),
    *(st.decimals(), st.dates(), st.datetimes(), st.timedeltas(), st.just(...), st.binary().map(bytearray)),
    st.sampled_from([np.int64(1), np.float32(1), np.bool_(1), np.str_("1"), np.array(1), np.array([1]), np.zeros(2)]),
)
keys = st.one_of(st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.none())
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.sets(keys, max_size=4),
        st.sets(keys, max_size=4).map(frozenset),
    ),
    max_leaves=8,
)


def exactly(value: Any) -> Any:
    """Value in a form whose equality tells types, signs, order and bits apart."""
    kind = type(value)
    if kind in (list, tuple):
        return kind, [exactly(part) for part in value]
    if kind is dict:
        return kind, [(exactly(key), exactly(part)) for key, part in value.items()]
    if kind in (set, frozenset):
        return kind, sorted(map(repr, map(exactly, value)))
    if isinstance(value, np.ndarray | np.generic):
        return kind, value.dtype.str, value.shape, value.tobytes()
    if kind in (float, complex):
        return kind, pickle.dumps(value)
    return kind, repr(value)


def digest_of(value: Any) -> str:
    return canonical(value_identity(value))


@pytest.mark.parametrize("examples", [60, pytest.param(2_000, marks=pytest.mark.variation)], ids=["few", "many"])
def test_digests_are_equal_exactly_when_values_are(examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(values, values)
    def check(one: Any, two: Any) -> None:
        assert (digest_of(one) == digest_of(two)) == (exactly(one) == exactly(two))
        assert digest_of(one) == digest_of(copy.deepcopy(one)) == digest_of(pickle.loads(pickle.dumps(one)))

    check()


def test_processes_with_other_hash_seeds_agree() -> None:
    given_values: list[Any] = []

    @settings(max_examples=30, deadline=None, database=None)
    @given(values)
    def collect(value: Any) -> None:
        given_values.append(value)

    collect()
    given_values.append({"a", "b", "c", frozenset({"d", "e", 1, 1.5})})
    code = (
        "import pickle, sys\n"
        "from forebay.data.transform.fingerprint.values import canonical, value_identity\n"
        "print([canonical(value_identity(each)) for each in pickle.load(sys.stdin.buffer)])"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            input=pickle.dumps(given_values),
            env=dict(os.environ) | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout.decode()
        for seed in ("1", "2")
    }
    assert found == {f"{[digest_of(each) for each in given_values]}\n"}
