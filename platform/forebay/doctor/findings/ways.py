"""Five ways of running a job, and the order of rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Way(StrEnum):
    """Source of the batches of a round.

    Each way has all the work of the ways before it, and more.
    """

    COMPUTE = "compute"
    COPY = "copy"
    GATHER = "gather"
    TRANSFORM = "transform"
    NETWORK = "network"


MEANINGS = {
    Way.COMPUTE: "batches kept on the device",
    Way.COPY: "batches in memory, copied to the device",
    Way.GATHER: "batches gathered from cached blocks",
    Way.TRANSFORM: "blocks made from the page cache",
    Way.NETWORK: "blocks made from the source",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundKind:
    """One kind of round.

    Attributes:
        way: Origin of the batches.
        is_small: Whether batches have a quarter of the rows.
        worker_factor: Factor on the number of data workers.
        probes: Whether a transform runs beside the training, to find a lock that both need.
    """

    way: Way
    is_small: bool = False
    worker_factor: int = 1
    probes: bool = False


def stages_of(*, copies: bool, resizes: bool) -> tuple[RoundKind, ...]:
    """Return the stages of one pass.

    `copies`: batches are copied to a device. `resizes`: batches may have fewer rows.
    """
    return (
        RoundKind(way=Way.COMPUTE),
        *([RoundKind(way=Way.COMPUTE, is_small=True)] if resizes else []),
        *([RoundKind(way=Way.COPY)] if copies else []),
        RoundKind(way=Way.GATHER),
        *([RoundKind(way=Way.GATHER, is_small=True)] if resizes else []),
        RoundKind(way=Way.TRANSFORM),
        RoundKind(way=Way.NETWORK),
        RoundKind(way=Way.NETWORK, worker_factor=2),
        RoundKind(way=Way.COMPUTE, probes=True),
    )


def essential(stages: tuple[RoundKind, ...]) -> tuple[RoundKind, ...]:
    """Return the stages needed to name a bottleneck: one for each way."""
    return tuple(each for each in stages if each == RoundKind(way=each.way))


def without_making(stages: tuple[RoundKind, ...]) -> tuple[RoundKind, ...]:
    """Return the stages that neither make blocks nor run transforms during training."""
    return tuple(each for each in stages if each.way not in (Way.TRANSFORM, Way.NETWORK) and not each.probes)


def in_pass(number: int, stages: tuple[RoundKind, ...]) -> Iterator[RoundKind]:
    """Return the stages of a pass.

    Every other pass is backwards: a load that grows or falls meets all ways alike.
    """
    return iter(stages if number % 2 == 0 else stages[::-1])
