"""Measurements as an examination would find them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from forebay.doctor.findings.measurements import Contention, JobFacts, Measurements, Round
from forebay.doctor.findings.ways import Way, stages_of

FACTS = JobFacts(
    rows=512,
    small_rows=128,
    batch_bytes=1 << 16,
    block_bytes=1e9,
    quota_bytes=50 << 30,
    epochs=3,
    workers=1,
    data_cores=1,
    fixed_reads=8,
    cores=2.0,
    is_local=True,
    device="cpu",
)
NO_LOCK = Contention(alone=0.02, together=0.05, beside=0.04, training=0.01, training_beside=0.05)


def measurements_of(
    *,
    noise: Mapping[Way, tuple[float, ...]] | None = None,
    fixed: float = 0.0,
    contention: Contention | None = NO_LOCK,
    facts: Mapping[str, Any] | None = None,
    **ms: float,
) -> Measurements:
    """Measurements by milliseconds of a step by way, as `compute=1.0, gather=1.1`.

    Making blocks takes `transform` and `network`. `noise` are factors on each round, `fixed` the share of a step that
    does not depend on its rows.
    """
    rounds = []
    for stage in stages_of(copies="copy" in ms, resizes=True):
        if stage.probes:
            continue
        makes = stage.way in (Way.TRANSFORM, Way.NETWORK)
        step_ms = ms["gather"] if makes else ms[stage.way]
        if stage.is_small:
            step_ms *= fixed + (1 - fixed) / 4
        for number, factor in enumerate((noise or {}).get(stage.way, (1.0,) * 5)):
            rounds.append(
                Round(
                    number=number,
                    stage=stage,
                    step_s=(step_ms if makes else step_ms * factor) / 1e3,
                    cpu_s=step_ms / 1e3,
                    produce_s=ms[stage.way] * factor / 1e3 / stage.worker_factor if makes else 0.0,
                    read_s=ms["network"] / 1e3 if stage.way is Way.NETWORK else 0.0,
                    make_s=ms["transform"] / 1e3 if makes else 0.0,
                    num_reads=8.0 if makes else 0.0,
                    gather_s=0.1e-3 if stage.way is Way.GATHER else 0.0,
                )
            )
    return Measurements(
        facts=replace(FACTS, **(facts or {})),
        rounds=tuple(rounds),
        contention=contention,
        making={"read": 0.2, "decode": 0.3, "transform": 0.4, "write": 0.1},
        gpu_idle={},
    )


@pytest.fixture
def measured() -> Callable[..., Measurements]:
    return measurements_of
