"""Bottlenecks from measurements that are written down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from forebay.doctor.findings.bottleneck import verdict_of
from forebay.doctor.findings.gains import gains_of
from forebay.doctor.findings.measurements import Contention, Measurements
from forebay.doctor.findings.ways import Way, in_pass, stages_of

Make = Callable[..., Measurements]
QUICK = {"compute": 1.0, "gather": 1.02, "transform": 0.3, "network": 0.4}


@pytest.mark.parametrize(
    ("changed", "bottleneck", "next_bottleneck", "cached"),
    [
        ({}, "compute", "network", "compute"),
        ({"network": 5.0}, "network", "compute", "compute"),
        ({"network": 5.0, "transform": 4.9}, "transform", "network", "compute"),
        ({"network": 9.0, "transform": 5.0}, "network", "transform", "compute"),
        ({"copy": 3.0, "gather": 3.05}, "copy", "compute", "copy"),
        ({"copy": 1.05, "gather": 3.0}, "gather", "compute", "gather"),
        ({"copy": 1.8, "gather": 2.6}, "compute", "copy", "compute"),
        ({"compute": 0.7, "gather": 2.0, "transform": 1.7}, "gather", "transform", "gather"),
        ({"network": 2.0, "gather": 6.0}, "gather", "network", "gather"),
    ],
)
def test_the_bottleneck_is_the_slower_side_or_the_largest_part_of_a_step(
    measured: Make, changed: dict[str, float], bottleneck: str, next_bottleneck: str, cached: str
) -> None:
    verdict = verdict_of(measured(**QUICK | changed))
    assert (verdict.bottleneck.name, verdict.cached.name) == (bottleneck, cached)
    assert verdict.next_bottleneck is not None
    assert verdict.next_bottleneck.name == next_bottleneck


def test_a_step_with_a_fixed_cost_stands_at_the_batch(measured: Make) -> None:
    found = measured(**QUICK, fixed=0.8)
    verdict = verdict_of(found)
    assert verdict.bottleneck.name == "batch"
    best = gains_of(found, verdict)[0]
    assert best.change == "batch of 4 times the rows"
    assert best.factor == pytest.approx(4 / (0.8 + 4 * 0.2))


def test_a_larger_batch_that_speeds_up_later_epochs_only_says_so(measured: Make) -> None:
    """The verdict names the batch as their bottleneck: a bare 1.00x would contradict it."""
    found = measured(**QUICK | {"network": 5.0}, fixed=0.8)
    verdict = verdict_of(found)
    assert verdict.bottleneck.name == "network"
    gain = next(each for each in gains_of(found, verdict) if each.change == "batch of 4 times the rows")
    assert (gain.factor, gain.why) == (1.0, "rows are the bottleneck, not steps; steps of later epochs: 2.50x")


def blocked(
    alone: float = 0.0,
    together: float = 0.0,
    beside: float = 0.0,
    *,
    training: float = 0.0,
    training_beside: float = 0.0,
) -> Contention:
    return Contention(alone=alone, together=together, beside=beside, training=training, training_beside=training_beside)


@pytest.mark.parametrize(
    ("contention", "bottleneck"),
    [
        (blocked(together=0.5), "lock"),
        (blocked(beside=0.6), "lock"),
        (blocked(beside=0.1, training_beside=0.9), "lock"),
        (blocked(alone=0.7, together=0.7, beside=0.7), "transform"),  # it waits for a device, not for others
        (blocked(training=0.8, training_beside=0.9), "transform"),  # the train function does so
        (None, "transform"),
    ],
)
def test_a_lock_is_not_a_heavy_transform(measured: Make, contention: Contention | None, bottleneck: str) -> None:
    found = measured(**QUICK | {"transform": 8.0, "network": 8.1}, contention=contention)
    verdict = verdict_of(found)
    assert verdict.bottleneck.name == bottleneck
    workers = next(gain for gain in gains_of(found, verdict) if "data workers" in gain.change)
    assert workers.factor == pytest.approx(1.0 if bottleneck == "lock" else 2.0, rel=0.02)


@pytest.mark.parametrize(
    ("fixed_reads", "network", "why"),
    [
        (8, 0.4, "measured, beside 1 core and 8 reads"),
        (8, 5.0, 'measured, beside 1 core and 8 reads (num_reads="auto" would follow the line)'),
        (None, 5.0, 'measured, beside 1 core and the 8 reads of num_reads="auto", which is left to choose'),
    ],
)
def test_reads_that_the_job_chooses_are_no_advice(
    measured: Make, fixed_reads: int | None, network: float, why: str
) -> None:
    found = measured(**QUICK | {"network": network}, facts={"fixed_reads": fixed_reads})
    assert next(gain.why for gain in gains_of(found, verdict_of(found)) if "data workers" in gain.change) == why


def test_a_lock_in_a_quick_transform_is_not_a_bottleneck(measured: Make) -> None:
    found = measured(**QUICK, contention=blocked(together=0.5))
    assert verdict_of(found).bottleneck.name == "compute"


def test_features_hold_no_lock(measured: Make) -> None:
    """On a loaded machine, threads of feature groups look as if they waited for each other."""
    ms = QUICK | {"transform": 8.0, "network": 8.1}
    found = measured(**ms, contention=blocked(together=0.5, beside=0.6), facts={"has_function": False})
    assert verdict_of(found).bottleneck.name == "cores"


def test_bottlenecks_that_cannot_be_separated_are_both_named(measured: Make) -> None:
    bottleneck = verdict_of(measured(**QUICK | {"transform": 5.0, "network": 5.3})).bottleneck
    assert (bottleneck.name, bottleneck.tied_with) == ("transform", "network")
    assert bottleneck.tied_within == pytest.approx(0.06)


def test_a_spread_of_the_rounds_widens_what_is_one_bottleneck(measured: Make) -> None:
    ms = {**QUICK, "transform": 5.0, "network": 6.0}
    assert verdict_of(measured(**ms)).bottleneck.name == "network"
    noise = {Way.NETWORK: (0.8, 1.2, 1.0, 0.85, 1.15)}
    bottleneck = verdict_of(measured(**ms, noise=noise)).bottleneck
    assert (bottleneck.name, bottleneck.tied_with) == ("transform", "network")


def test_a_load_on_whole_rounds_changes_no_bottleneck(measured: Make) -> None:
    loaded = dict.fromkeys(Way, (1.0, 3.0, 1.0, 2.5, 4.0))
    assert verdict_of(measured(**QUICK | {"network": 5.0}, noise=loaded)).bottleneck.name == "network"


def slowed(found: Measurements, step_s: float) -> Measurements:
    """Steps take `step_s` while blocks are made."""
    return replace(
        found, rounds=tuple(replace(each, step_s=step_s) if each.produce_s else each for each in found.rounds)
    )


def test_making_blocks_slows_training_for_its_share_of_time_only(measured: Make) -> None:
    # Blocks take a third of the time of a step: their round shows a step of 1.9 ms, an epoch a third of the difference.
    found = slowed(measured(**QUICK), 1.9e-3)
    step_s = found.step_s(next(stage for stage in stages_of(copies=False, resizes=False) if stage.way is Way.TRANSFORM))
    assert step_s[0] == pytest.approx(1.02e-3 + 0.88e-3 * 0.3 / 1.9)


@pytest.mark.parametrize(
    ("contention", "bottleneck"), [(blocked(), "compute"), (blocked(beside=0.3, training_beside=0.5), "lock")]
)
def test_training_that_is_slowed_down_has_its_own_bottleneck_but_for_a_lock(
    measured: Make, contention: Contention, bottleneck: str
) -> None:
    found = measured(compute=20.0, gather=20.5, transform=13.0, network=13.1, contention=contention)
    verdict = verdict_of(slowed(found, 70e-3))
    assert (verdict.bottleneck.name, verdict.bottleneck.tied_with) == (bottleneck, None)
    assert verdict.bottleneck.step_s == pytest.approx(20.5e-3 + 49.5e-3 * 13.1 / 70)


@pytest.mark.parametrize(("training_beside", "bottleneck"), [(0.05, "compute"), (0.9, "lock")])
def test_a_lock_that_training_waits_for_outweighs_the_spread_of_rounds(
    measured: Make, training_beside: float, bottleneck: str
) -> None:
    noise = {Way.NETWORK: (0.6, 1.6, 1.0, 0.6, 1.5)}
    contention = blocked(training_beside=training_beside)
    found = measured(compute=1.0, gather=1.02, transform=1.4, network=1.4, noise=noise, contention=contention)
    assert verdict_of(found).bottleneck.name == bottleneck


def test_slower_steps_without_busy_reads_are_no_network(measured: Make) -> None:
    found = measured(**QUICK | {"transform": 5.0, "network": 6.5})
    idle = tuple(replace(each, read_s=each.read_s / 10) for each in found.rounds)
    assert verdict_of(found).bottleneck.name == "network"
    assert verdict_of(replace(found, rounds=idle)).bottleneck.name == "transform"


def test_reads_that_are_twice_as_busy_as_cores_outweigh_the_spread_of_rounds(measured: Make) -> None:
    noise = {Way.NETWORK: (0.5, 1.5, 1.0, 0.6, 1.4)}
    found = measured(**QUICK | {"transform": 5.0, "network": 6.5}, noise=noise)
    assert verdict_of(found).bottleneck.tied_with == "network"
    quick = tuple(replace(each, make_s=each.make_s / 2) for each in found.rounds)
    assert verdict_of(replace(found, rounds=quick)).bottleneck.name == "network"


def test_a_lock_needs_a_transform_that_takes_longer_than_decoding(measured: Make) -> None:
    found = measured(**QUICK | {"transform": 5.0, "network": 5.0}, contention=blocked(together=0.5))
    assert verdict_of(found).bottleneck.name == "lock"
    making = {"read": 0.2, "decode": 0.4, "transform": 0.1, "write": 0.3}
    assert verdict_of(replace(found, making=making)).bottleneck.name == "cores"


def test_every_other_round_is_backwards() -> None:
    stages = stages_of(copies=True, resizes=False)
    assert [stage for number in range(2) for stage in in_pass(number, stages)] == [*stages, *reversed(stages)]
