"""Options of all tables of a model."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.errors import InvalidOption
from forebay.training.tables.optimizers import RowOptimizer
from forebay.training.tables.placement import Placements, validate_placements
from forebay.training.tables.warm_start.options import WarmStart
from forebay.training.tables.wire import WireName, validate_wire


@dataclass(frozen=True, slots=True)
class Tables:
    """Options of a model's tables.

    For `worker.setup(model, optimizer, tables=Tables(...))`.

    Attributes:
        optimizer: Optimizer of all rows.
        placement: "rows" (each rank owns a share of the rows), "replicate" (each has all), "table" (one rank has all),
            "auto" (the cheapest by the lookups of the first steps), or one of these by name of the table.
        wire: Form of rows and gradients between ranks. "bfloat16" and "float16" send half the bytes, and round them.
            In a world of one, nothing is rounded.
        link_mbit: Speed of the links between workers, in Mbit/s, by which "auto" weighs bytes.
            None: workers are processes of one machine.
        start: Earlier run whose rows this one starts from, unless it has a checkpoint of its own.

    Raises `InvalidOption` for values that can never work.
    """

    optimizer: RowOptimizer
    placement: Placements = "auto"
    wire: WireName = "float32"
    link_mbit: float | None = None
    start: WarmStart | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.optimizer, RowOptimizer):
            raise InvalidOption(
                f"tables={self.optimizer!r}: give the optimizer of rows, RowWiseAdagrad, RowSGD or LazyAdam."
            )
        validate_placements(self.placement)
        validate_wire(self.wire)
        if self.link_mbit is not None and not self.link_mbit > 0:
            raise InvalidOption(
                f"link_mbit={self.link_mbit!r}: give the Mbit/s of a link, or None for workers of one machine.",
                link_mbit=self.link_mbit,
            )
