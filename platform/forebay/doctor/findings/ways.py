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


def in_rounds(stages: tuple[RoundKind, ...], num_rounds: int) -> Iterator[tuple[int, RoundKind]]:
    """Return the stages of all rounds.

    Every other round is backwards: a load that grows or falls meets all ways alike.
    """
    for number in range(num_rounds):
        for stage in stages if number % 2 == 0 else reversed(stages):
            yield number, stage
