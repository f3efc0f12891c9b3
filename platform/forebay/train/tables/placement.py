"""Placement of tables: bytes and time of each one per step, and the choice among them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from forebay.errors import InvalidOption
from forebay.formatting import bytes_text
from forebay.train.tables.wire import WireName, row_bytes

PlacementName = Literal["rows", "replicate", "table"]
"""Ranks that hold a row: one by its shard, all of them, or the one rank that holds the whole table."""
Placements = str | Mapping[str, str]
"""Placement of all tables, or of each by name. "auto" chooses the cheapest one by its measured use."""
AUTO = "auto"
MEASURED_STEPS = 20
"""Steps whose lookups "auto" counts before it decides."""
START_BYTES = 1 << 18
"""Size up to which "auto" replicates a table before it has counted lookups."""
PLACE_BYTES = 4
ID_BYTES = 16
"""Bytes with which an open vocabulary is asked for a row: the id, and how often it was looked up."""
_MESSAGES = {"rows": 4, "replicate": 1, "table": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeed:
    """Time of messages between ranks: each one, and each byte that the busiest rank sends.

    `dense_s` is the time to clear, sum and search a number of a dense gradient. The numbers are those of gloo between
    processes of one machine. They are constants: a measurement at each start could place a table elsewhere after a
    resume, and sums would round otherwise.
    """

    message_s: float = 2e-4
    byte_s: float = 1e-9
    dense_s: float = 2.5e-9

    @classmethod
    def of(cls, mbit: float | None) -> LinkSpeed:
        """Return the speed of links of so many Mbit/s. None: between processes of one machine."""
        return cls() if mbit is None else cls(byte_s=8e-6 / mbit)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDemand:
    """Size of a table, and the unique rows that a rank looks up per step. An open vocabulary is placed as "rows"."""

    rows: int
    dim: int
    unique: float
    world_size: int
    wire: WireName = "float32"
    is_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementCost:
    """Cost of a placement per step: bytes that the busiest rank sends, and seconds."""

    placement: PlacementName
    sent_bytes: float
    seconds: float


def cost_of(placement: PlacementName, demand: TableDemand, link: LinkSpeed | None = None) -> PlacementCost:
    """Return the cost of one placement."""
    link, size = link or LinkSpeed(), demand.world_size
    if size == 1:
        return PlacementCost(placement=placement, sent_bytes=0.0, seconds=0.0)
    width, others = row_bytes(demand.dim, demand.wire), (size - 1) / size
    dense = 0.0
    match placement:
        case "rows":
            asked = ID_BYTES if demand.is_open else PLACE_BYTES
            sent = demand.unique * (asked + 2 * width) * others
        case "table":  # Its rank answers all others, each of which sends places and gradients.
            sent = demand.unique * max((size - 1) * width, PLACE_BYTES + width)
        case "replicate":
            sent = 8.0 * demand.rows * demand.dim * others
            dense = demand.rows * demand.dim * link.dense_s
    seconds = _MESSAGES[placement] * link.message_s + sent * link.byte_s + dense
    return PlacementCost(placement=placement, sent_bytes=sent, seconds=seconds)


def costs_of(demand: TableDemand, link: LinkSpeed | None = None) -> list[PlacementCost]:
    """Return the costs of all placements that the table may have, the cheapest first."""
    known: tuple[PlacementName, ...] = ("rows",) if demand.is_open else get_args(PlacementName)
    every = [cost_of(placement, demand, link) for placement in known]
    return sorted(every, key=lambda cost: cost.seconds)


def reason_of(demand: TableDemand, costs: list[PlacementCost]) -> str:
    """Return one line: why the first of `costs` was chosen."""
    best, second = costs[0], costs[1]
    return (
        f"{best.placement}: {demand.unique:,.0f} unique rows a rank and step, {bytes_text(best.sent_bytes)} and about "
        f"{best.seconds * 1e3:.2f} ms; {second.placement}: {bytes_text(second.sent_bytes)}, "
        f"{second.seconds * 1e3:.2f} ms"
    )


def validate_placements(placements: Placements) -> None:
    """Raises `InvalidOption` for an unknown placement."""
    known = (AUTO, *get_args(PlacementName))
    for each in [placements] if isinstance(placements, str) else placements.values():
        if each not in known:
            names = ", ".join(map(repr, known))
            raise InvalidOption(f"placement={each!r} is unknown. Choose one of {names}.", placement=each)
