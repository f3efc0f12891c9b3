"""Bottlenecks of examinations that were cut off, by estimates of the ways that were not run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from forebay.doctor.findings.bottleneck import verdict_of
from forebay.doctor.findings.estimates import Estimates, complete_passes, with_estimates
from forebay.doctor.findings.gains import gains_of
from forebay.doctor.findings.measurements import Measurements
from forebay.doctor.findings.ways import RoundKind, Way

QUICK = {"compute": 1.0, "gather": 1.02, "transform": 0.3, "network": 0.4}
NOTHING = Estimates(step_s=0.0, gather_s=0.0, read_s=0.0, make_s=0.0, num_reads=8.0)


@pytest.mark.parametrize(
    ("seen", "name"),
    [
        ({"read_s": 3.0}, "network"),
        ({"read_s": 0.1, "make_s": 4.0}, "transform"),
        ({"read_s": 0.1, "make_s": 0.2, "step_s": 2.0}, "compute"),
        ({"read_s": 0.1, "make_s": 0.2, "step_s": 0.3, "gather_s": 5.0}, "gather"),
        ({"read_s": 0.1, "make_s": 2.0, "step_s": 0.3, "gather_s": 0.3}, "transform"),
    ],
)
@pytest.mark.parametrize("copies", [False, True])
def test_what_was_seen_until_the_cut_is_judged(
    measured: Callable[..., Measurements], seen: dict[str, float], name: str, copies: bool
) -> None:
    rounds = with_estimates((), replace(NOTHING, **seen), copies=copies)
    found = replace(measured(**QUICK), rounds=rounds, cut_off="The time ended.")
    verdict = verdict_of(found)
    assert verdict.bottleneck.name == name
    assert len(gains_of(found, verdict)) == 5


def test_what_was_measured_stays(measured: Callable[..., Measurements]) -> None:
    whole = measured(**QUICK).rounds
    first = [each for each in whole if each.number == 0 and each.stage.way in (Way.COMPUTE, Way.GATHER)]
    rounds = with_estimates(first, replace(NOTHING, make_s=1.0), copies=False)
    assert set(first) < set(rounds)
    assert {each.stage.way for each in rounds} == set(Way) - {Way.COPY}


def test_a_part_of_a_pass_does_not_count(measured: Callable[..., Measurements]) -> None:
    rounds = measured(**QUICK).rounds
    stages = {each.stage for each in rounds}
    cut = [each for each in rounds if each.number < 2 or each.stage == RoundKind(way=Way.COMPUTE)]
    assert {each.number for each in complete_passes(cut, tuple(stages))} == {0, 1}
    assert complete_passes(cut[:3], tuple(stages)) == ()


def test_blocks_may_be_made_in_fewer_passes_than_steps(measured: Callable[..., Measurements]) -> None:
    found = measured(**QUICK | {"network": 5.0})
    fewer = tuple(each for each in found.rounds if each.number < 1 or each.stage.way in (Way.COMPUTE, Way.GATHER))
    stages = {each.stage for each in found.rounds}
    assert complete_passes(fewer, tuple(stages)) == fewer
    verdict = verdict_of(replace(found, rounds=fewer))
    assert verdict.bottleneck.name == "network"
    assert len(gains_of(replace(found, rounds=fewer), verdict)) == 5


def test_passes_whose_source_had_nothing_to_count_are_left_out_of_a_gain(measured: Callable[..., Measurements]) -> None:
    found = measured(**QUICK | {"network": 5.0})
    source = RoundKind(way=Way.NETWORK)
    fewer = replace(found, rounds=tuple(each for each in found.rounds if each.stage != source or each.number == 0))
    gain = next(each for each in gains_of(fewer, verdict_of(fewer)) if "data workers" in each.change)
    assert gain.factor > 1 and gain.why.startswith("measured")
