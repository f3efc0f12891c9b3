"""Arguments that users of other loaders give to `fb.Loader`."""

from __future__ import annotations

from typing import Any

import pytest

import forebay as fb
from forebay.errors import InvalidOption


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("batch_size", "Give global_batch=: rows of a step on all ranks together"),
        ("shuffle", "fb.build_plan(manifest, shuffle="),
        ("num_workers", "FOREBAY_DATA_WORKERS"),
        ("drop_last", 'last="drop"'),
        ("pin_memory", 'device="cuda"'),
        ("global_bach", "Did you mean 'global_batch'?"),
        ("nonsense", "fb.Loader has no argument nonsense=."),
    ],
)
def test_an_unknown_argument_is_refused_with_what_is_meant(name: str, says: str) -> None:
    given: dict[str, Any] = {name: 1}
    with pytest.raises(InvalidOption) as failure:
        fb.Loader(None, **given)
    assert says in str(failure.value)
    assert failure.value.facts["argument"] == name
