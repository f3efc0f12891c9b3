"""Gains of changes to a job, computed from one examination.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from forebay.doctor.findings.bottleneck import LOCK, BottleneckVerdict, ratio_of, step_s_of
from forebay.doctor.findings.loop_parts import fixed_share_of
from forebay.doctor.findings.measurements import Measurements
from forebay.doctor.findings.ways import RoundKind, Way
from forebay.runtime.formatting import bytes_text

LARGER = 4
CACHED = "blocks in the cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """A change, its speedup of the first epoch, and the reason.

    `factor` is on the rows per second.
    """

    change: str
    factor: float
    why: str


def gains_of(found: Measurements, verdict: BottleneckVerdict) -> list[Gain]:
    """Gains of all changes, the largest first."""
    gains = [_workers(found, verdict), _nearer(found), _cache(found), _bytes(found, verdict), _batch(found, verdict)]
    return sorted(gains, key=lambda gain: -gain.factor)


def _workers(found: Measurements, verdict: BottleneckVerdict) -> Gain:
    change, facts = "twice the data workers", found.facts
    doubled = RoundKind(way=Way.NETWORK, worker_factor=2)
    before, after = (found.step_s(stage) for stage in (RoundKind(way=Way.NETWORK), doubled))
    if verdict.bottleneck.name == LOCK:
        return Gain(change=change, factor=1.0, why="a lock admits one transform at a time")
    factors = sorted(before[number] / after[number] for number in before.keys() & after.keys())
    if not factors:
        return Gain(change=change, factor=1.0, why="not measured")
    factor = factors[len(factors) // 2]
    cores = facts.data_cores
    room = "" if 2 * cores <= facts.cores else f", of {facts.cores:g} cores in all"
    return Gain(
        change=change,
        factor=factor,
        why=f"measured, beside {cores} core{'' if cores == 1 else 's'} and {_reads_text(found, verdict)}{room}",
    )


def _reads_text(found: Measurements, verdict: BottleneckVerdict) -> str:
    """Describe the job's reads.

    Reads that "auto" chose are not part of the change: it chooses again.
    """
    if found.facts.fixed_reads is not None:
        auto = ' (num_reads="auto" would follow the line)' if verdict.bottleneck.name == Way.NETWORK else ""
        return f"{found.facts.fixed_reads} reads{auto}"
    chosen = found.median_of(RoundKind(way=Way.NETWORK), "num_reads")
    return f'the {chosen:.0f} reads of num_reads="auto", which is left to choose'


def _nearer(found: Measurements) -> Gain:
    factor, _ = ratio_of(found, Way.NETWORK, Way.TRANSFORM)
    where = "page cache" if found.facts.is_local else "memory"
    return Gain(change="nearer data", factor=factor, why=f"measured: its pages in the {where}")


def _cache(found: Measurements) -> Gain:
    factor, _ = ratio_of(found, Way.NETWORK, Way.GATHER)
    facts = found.facts
    needed = f"blocks need {bytes_text(facts.block_bytes)}"
    if facts.quota_bytes is None:
        why = f"as in later epochs: {needed}, and the job has no cache"
    elif facts.block_bytes > facts.quota_bytes:
        why = f"as in later epochs: {needed}, and the quota is {bytes_text(facts.quota_bytes)}"
    else:
        why = f"as in later epochs: {needed}, which the quota has"
    return Gain(change=CACHED, factor=factor, why=why)


def _bytes(found: Measurements, verdict: BottleneckVerdict) -> Gain:
    """Return the gain of batches of half the bytes.

    They take half of the copy and of the gather, where these are the bottleneck.
    """
    change = "half the bytes (dtypes)"
    compute, now = step_s_of(found, Way.COMPUTE), verdict.bottleneck.step_s
    if verdict.bottleneck.way not in (Way.COPY, Way.GATHER):
        return Gain(change=change, factor=1.0, why=f"a batch has {bytes_text(found.facts.batch_bytes)}: no bottleneck")
    moved = max(now - compute, 0.0)
    return Gain(change=change, factor=now / (now - moved / 2), why=f"{1e3 * moved:.3g} ms of a step move bytes")


def _batch(found: Measurements, verdict: BottleneckVerdict) -> Gain:
    change = f"batch of {LARGER} times the rows"
    share = fixed_share_of(found, Way.GATHER)
    factor = 1.0 if share is None else LARGER / (share + LARGER * (1 - share))
    if verdict.bottleneck.way not in (Way.COMPUTE, Way.COPY, Way.GATHER):
        later = "" if share is None else f"; steps of later epochs: {factor:.2f}x"
        return Gain(change=change, factor=1.0, why=f"rows are the bottleneck, not steps{later}")
    if share is None:
        return Gain(change=change, factor=1.0, why="not measured")
    return Gain(change=change, factor=factor, why=f"{share:.0%} of a step do not depend on its rows")
