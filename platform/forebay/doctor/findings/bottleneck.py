"""Verdict of an examination: the bottleneck, and the next one. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from forebay.doctor.findings.loop_parts import LoopPart, is_clearly_larger, loop_parts
from forebay.doctor.findings.measurements import Measurements, spread_of
from forebay.doctor.findings.ways import RoundKind, Way

LEAST_GAP = 0.10
"""Two ways that are closer than this share, or than twice the spread of their rounds, are one bottleneck."""
TIE = 0.03
CLEARLY_BUSIER = 2.0
"""From this ratio of busy reads to busy cores, the spread of the rounds does not hide a network."""
LOCK = "lock"
"""A lock in the user's functions, a bottleneck without a way of its own."""
CORES = "cores"
"""Too few cores of data workers: decoding or feature groups, not a function of the user, take their time."""
_LOOP = (Way.COMPUTE, Way.COPY, Way.GATHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The stage that limits a job.

    Attributes:
        name: A `Way`, `BATCH`, `LOCK` or `CORES`.
        way: The way in which it was found.
        step_s: Seconds of a step at this bottleneck.
        tied_with: Name of a bottleneck that cannot be separated from this one, and by how much it differs at most.
    """

    name: str
    way: Way
    step_s: float
    tied_with: str | None = None
    tied_within: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BottleneckVerdict:
    """Bottlenecks of the first epoch and of cached epochs.

    `cached` holds for later epochs.

    `next_bottleneck` is where the first epoch stands once `bottleneck` is out of the way.
    """

    bottleneck: Bottleneck
    next_bottleneck: Bottleneck | None
    cached: Bottleneck


def verdict_of(found: Measurements) -> BottleneckVerdict:
    """Find the bottlenecks.

    Stages that make blocks run beside the training: the slower side counts. Stages of the training loop follow each
    other: the one that takes the largest part of a step counts.
    """
    parts = loop_parts(found)
    cached = _loop_bottleneck(parts, step_s_of(found, Way.GATHER))
    bottleneck = _making_bottleneck(found, parts) or _slowed(found, cached)
    return BottleneckVerdict(bottleneck=bottleneck, next_bottleneck=_next(found, bottleneck, parts), cached=cached)


def ratio_of(found: Measurements, way: Way, other: Way) -> tuple[float, float]:
    """Return the time of a step by `way` relative to `other`.

    A pair: the median over the rounds, and their spread.

    Both are of one round, so a load that comes and goes is in both.
    """
    upper, lower = found.step_s(RoundKind(way=way)), found.step_s(RoundKind(way=other))
    ratios = [upper[number] / lower[number] for number in sorted(upper.keys() & lower.keys())]
    return median(ratios), spread_of(ratios) / median(ratios)


def step_s_of(found: Measurements, way: Way) -> float:
    """Return the median seconds of a step in a way.

    At least as many as in the ways before it.
    """
    known = [earlier for earlier in Way if found.of(RoundKind(way=earlier))]
    before = known[: known.index(way) + 1]
    return max(median(found.step_s(RoundKind(way=each)).values()) for each in before)


def _loop_bottleneck(parts: list[LoopPart], step_s: float) -> Bottleneck:
    first, second = parts[0], parts[1]
    tied = not is_clearly_larger(first, second, LEAST_GAP)
    return Bottleneck(
        name=first.name,
        way=first.way,
        step_s=step_s,
        tied_with=second.name if tied else None,
        tied_within=max(first.share / second.share - 1, 0.0) if tied and second.share else 0.0,
    )


def _making_bottleneck(found: Measurements, parts: list[LoopPart]) -> Bottleneck | None:
    """Return the bottleneck of making blocks.

    None if training is as slow without it, or is only slowed down by less than its own work.

    A lock that training waits for is named however much slower training is by itself: it makes both sides take turns.
    """
    takes_turns = _making_name(found) == LOCK and found.contention is not None and found.contention.with_training
    slower, spread = ratio_of(found, Way.NETWORK, Way.GATHER)
    if takes_turns:
        spread = 0.0  # blocked time shows it, whatever load spreads the rounds
    if slower <= 1 + max(LEAST_GAP, 2 * spread):
        return None
    produced, alone = found.of(RoundKind(way=Way.NETWORK)), found.of(RoundKind(way=Way.GATHER))
    waits = median(produced[number].produce_s / alone[number].step_s for number in produced) > 1
    if not (waits or takes_turns or slower - 1 > parts[0].share):
        return None
    further, spread = ratio_of(found, Way.NETWORK, Way.TRANSFORM)
    step_s = step_s_of(found, Way.NETWORK)
    if _reads_are_busiest(found, factor=CLEARLY_BUSIER):
        spread = 0.0  # counted in the same rounds, whose load spreads their times
    if not _reads_are_busiest(found):
        return Bottleneck(name=_making_name(found), way=Way.TRANSFORM, step_s=step_s)
    if further > 1 + max(LEAST_GAP, 2 * spread):
        return Bottleneck(name=str(Way.NETWORK), way=Way.NETWORK, step_s=step_s)
    bottleneck = Bottleneck(name=_making_name(found), way=Way.TRANSFORM, step_s=step_s)
    return replace(bottleneck, tied_with=str(Way.NETWORK), tied_within=further - 1) if further > 1 + TIE else bottleneck


def _slowed(found: Measurements, cached: Bottleneck) -> Bottleneck:
    """Return the loop's bottleneck, at its speed while blocks are made."""
    slower, spread = ratio_of(found, Way.NETWORK, Way.GATHER)
    bottleneck = replace(cached, step_s=step_s_of(found, Way.NETWORK))
    if not 1 + TIE < slower <= 1 + max(LEAST_GAP, 2 * spread):
        return bottleneck
    later = Way.NETWORK if _reads_are_busiest(found) else Way.TRANSFORM
    name = _making_name(found) if later is Way.TRANSFORM else str(later)
    return replace(bottleneck, tied_with=name, tied_within=slower - 1)


def _reads_are_busiest(found: Measurements, factor: float = 1.0) -> bool:
    """Return whether reads are `factor` times busier than cores.

    Both make blocks from the source; cores decode and transform.
    """
    source = RoundKind(way=Way.NETWORK)
    return found.median_of(source, "read_s") > factor * found.median_of(source, "make_s")


def _making_name(found: Measurements) -> str:
    """Name the bottleneck of making blocks.

    A lock counts if a function of the user takes longer than decoding and writing: features compute without the GIL,
    and only look contended on a loaded machine. Else, where no such function takes the most of their time, it is the
    number of cores.
    """
    contention, cores = found.contention, found.facts.data_cores
    reads = found.median_of(RoundKind(way=Way.TRANSFORM), "num_reads")
    # Seconds at work of all that do this at once. Threads that read also write, without a core.
    transforms, decodes, writes = (
        found.making[name] / at_once for name, at_once in (("transform", cores), ("decode", cores), ("write", reads))
    )
    has_function = found.facts.has_function
    is_contended = contention is not None and (contention.with_itself or contention.with_training)
    if has_function and is_contended and transforms >= max(decodes, writes):
        return LOCK
    if has_function and found.making["transform"] >= found.making["decode"]:
        return str(Way.TRANSFORM)
    return CORES if found.making["decode"] + found.making["transform"] > 0 else str(Way.TRANSFORM)


def _next(found: Measurements, bottleneck: Bottleneck, parts: list[LoopPart]) -> Bottleneck | None:
    """Return the next bottleneck: the longest of the other stages."""
    candidates = [each for each in _others(found, bottleneck, parts) if each.step_s > 0]
    if not candidates:
        return None
    most = max(candidate.step_s for candidate in candidates)
    return next(each for each in candidates if each.step_s >= most / (1 + LEAST_GAP))


def _others(found: Measurements, bottleneck: Bottleneck, parts: list[LoopPart]) -> Iterator[Bottleneck]:
    loop_s = step_s_of(found, Way.GATHER)
    if bottleneck.way not in _LOOP:
        yield _loop_bottleneck(parts, loop_s)
    else:
        yield Bottleneck(name=parts[1].name, way=parts[1].way, step_s=loop_s * (1 - parts[0].share))
        if bottleneck.name != Way.GATHER:  # it runs beside the other parts
            yield Bottleneck(
                name=str(Way.GATHER), way=Way.GATHER, step_s=found.median_of(RoundKind(way=Way.GATHER), "gather_s")
            )
    if bottleneck.way is not Way.TRANSFORM:
        made_s = found.median_of(RoundKind(way=Way.TRANSFORM), "produce_s")
        yield Bottleneck(name=_making_name(found), way=Way.TRANSFORM, step_s=made_s)
    if bottleneck.way is not Way.NETWORK:
        yield Bottleneck(
            name=str(Way.NETWORK), way=Way.NETWORK, step_s=found.median_of(RoundKind(way=Way.NETWORK), "read_s")
        )
