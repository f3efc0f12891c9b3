"""Estimates of rounds that an examination had no time for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from forebay.doctor.findings.measurements import Round
from forebay.doctor.findings.ways import RoundKind, Way, essential, without_making

_LEAST_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Known seconds of a step. 0 where nothing was measured.

    Attributes:
        step_s: The train function.
        gather_s: The train function with the wait for its batch.
        read_s: Reads of its rows, all at work.
        make_s: Decoding and transforming its rows, on all cores of data workers.
        num_reads: Row groups that are read at once.
    """

    step_s: float
    gather_s: float
    read_s: float
    make_s: float
    num_reads: float


def complete_passes(rounds: Sequence[Round], stages: tuple[RoundKind, ...]) -> tuple[Round, ...]:
    """Rounds of the passes that have all `stages` which make no blocks.

    Empty if no pass has a round of each way.
    """
    by_number = dict[int, set[RoundKind]]()
    for each in rounds:
        by_number.setdefault(each.number, set()).add(each.stage)
    complete = {number for number, found in by_number.items() if found >= set(without_making(stages))}
    if not any(by_number[number] >= set(essential(stages)) for number in complete):
        return ()
    return tuple(each for each in rounds if each.number in complete)


def with_estimates(rounds: Sequence[Round], estimates: Estimates, *, copies: bool) -> tuple[Round, ...]:
    """Return the first pass, with estimates of the ways that it lacks."""
    step_s = max(estimates.step_s, _LEAST_S)
    gather_s = max(estimates.gather_s, step_s)
    step = Round(number=0, stage=RoundKind(way=Way.COMPUTE), step_s=step_s, cpu_s=step_s)
    made = replace(
        step,
        stage=RoundKind(way=Way.TRANSFORM),
        step_s=gather_s,
        produce_s=max(estimates.make_s, _LEAST_S),
        make_s=estimates.make_s,
        num_reads=estimates.num_reads,
    )
    read = replace(
        made,
        stage=RoundKind(way=Way.NETWORK),
        produce_s=max(estimates.make_s, estimates.read_s, _LEAST_S),
        read_s=estimates.read_s,
    )
    gathered = replace(step, stage=RoundKind(way=Way.GATHER), step_s=gather_s)
    copied = [replace(step, stage=RoundKind(way=Way.COPY))] if copies else []
    measured = {each.stage: each for each in rounds if each.number == 0}
    assumed = {each.stage: each for each in (step, *copied, gathered, made, read)}
    return tuple((assumed | measured).values())
