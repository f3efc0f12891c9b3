"""Combinations of a strategy with other options: what cannot work is refused by the job, before a worker starts."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from forebay.data.loader.data import Data
from forebay.errors import InvalidOption
from forebay.training.batch_size.noise_scale import NoiseScale
from forebay.training.job.job import Job
from forebay.training.monitors.embedding_norms import EmbeddingNorms
from forebay.training.monitors.nan_guard import NanGuard
from forebay.training.strategies.choice import INSTALL, require_package


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"strategy": "zero9"},
            "strategy='zero9' is unknown. Choose one of 'ddp', 'fsdp2', 'zero1', 'zero2', ",
        ),
        ({"strategy": "zero1", "offload": "disk"}, "offload='disk' is unknown. Choose one of 'none', 'optimizer'."),
        ({"offload": "optimizer"}, "offload='optimizer' and strategy='ddp' .* Set one of them, or offload='none'"),
        ({"strategy": "fsdp2", "offload": "optimizer"}, "Only 'zero1', 'zero2' and 'zero3' offload"),
        ({"strategy": "fsdp2", "reduction": "exact"}, "reduction='exact' and strategy='fsdp2' .* strategy='ddp'"),
        ({"strategy": "zero3", "reduction": "adasum"}, "reduction='adasum' and strategy='zero3' .* strategy='ddp'"),
        ({"strategy": "zero1", "monitors": [EmbeddingNorms(1.0)]}, "EmbeddingNorms, which reads whole .*'zero1'"),
        ({"strategy": "fsdp2", "batch": NoiseScale(min_batch=8, max_batch=8)}, "NoiseScale, which reads .*'fsdp2'"),
    ],
)
def test_what_cannot_work_together_is_refused_with_the_remedy(
    make_data: Callable[..., Data], options: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidOption, match=text):
        Job(train=lambda _: None, data=make_data(), **options)


def test_what_can_work_together_is_accepted(make_data: Callable[..., Data]) -> None:
    for strategy in ("fsdp2", "zero1", "zero2", "zero3"):
        Job(train=lambda _: None, data=make_data(), strategy=strategy, monitors=(NanGuard(),))
    Job(train=lambda _: None, data=make_data(), strategy="zero2", offload="optimizer")
    Job(train=lambda _: None, data=make_data(), reduction="exact", monitors=(EmbeddingNorms(1.0),))


def test_missing_package_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    require_package("fsdp2")
    with pytest.raises(InvalidOption) as refusal:
        require_package("zero3")
    assert INSTALL in str(refusal.value)
