"""Placement of tables by bytes and time per step.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from forebay.errors import InvalidOption
from forebay.runtime.formatting import bytes_text
from forebay.training.tables.wire import WireName, row_bytes

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
_LOOKUP_MESSAGES = 3
"""Numbers of ids, ids and rows. Gradients of all exchanged tables are one more message, and dense ones another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeed:
    """Cost of messages between ranks.

    Of each message, and of each byte that the busiest rank sends.

    `dense_s` is the time to clear, sum and search a number of a dense gradient. The numbers were measured with gloo
    between processes of one machine. They are constants: a measurement at each start could place a table elsewhere
    after a resume, and sums would round otherwise.
    """

    message_s: float = 2e-4
    byte_s: float = 1e-9
    dense_s: float = 2.5e-9

    @classmethod
    def of(cls, mbit: float | None) -> LinkSpeed:
        """Return the speed of links of so many Mbit/s.

        None: between processes of one machine.
        """
        return cls() if mbit is None else cls(byte_s=8e-6 / mbit)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDemand:
    """Size of a table, and a rank's lookups per step.

    An open vocabulary is placed as "rows".

    `unique` is the number of its rows. `calls` are lookups, and `own_calls` their sum if a call of `look_up` with k
    tables counts 1/k for each of them: the tables share its messages. `fixed` is a placement that the user has named.
    """

    rows: int
    dim: int
    unique: float
    world_size: int
    wire: WireName = "float32"
    is_open: bool = False
    calls: float = 1.0
    own_calls: float = 1.0
    fixed: PlacementName | None = None

    @property
    def known(self) -> tuple[PlacementName, ...]:
        """Placements that the table may have."""
        if self.is_open:
            return ("rows",)
        return get_args(PlacementName) if self.fixed is None else (self.fixed,)

    @property
    def may_be_replicated(self) -> bool:
        """Whether ranks need no rows from others."""
        return "replicate" in self.known

    @property
    def shares_calls(self) -> bool:
        """Whether other tables are looked up in the same calls."""
        return self.own_calls < self.calls


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementCost:
    """Cost of a placement per step.

    Bytes that the busiest rank sends, and seconds.
    """

    placement: PlacementName
    sent_bytes: float
    seconds: float


def cost_of(
    placement: PlacementName, demand: TableDemand, link: LinkSpeed | None = None, num_tables: int = 1
) -> PlacementCost:
    """Return the cost of one placement.

    With the table's share of the messages of `num_tables` of the same placement.
    """
    link = link or LinkSpeed()
    if demand.world_size == 1:
        return PlacementCost(placement=placement, sent_bytes=0.0, seconds=0.0)
    messages = 1 / num_tables + (0.0 if placement == "replicate" else _LOOKUP_MESSAGES * demand.own_calls)
    seconds = messages * link.message_s + _numbers_s(placement, demand, link)
    return PlacementCost(placement=placement, sent_bytes=_sent_bytes(placement, demand), seconds=seconds)


def _numbers_s(placement: PlacementName, demand: TableDemand, link: LinkSpeed) -> float:
    """Return a placement's seconds without message overhead."""
    dense_s = demand.rows * demand.dim * link.dense_s if placement == "replicate" else 0.0
    return _sent_bytes(placement, demand) * link.byte_s + dense_s


def _sent_bytes(placement: PlacementName, demand: TableDemand) -> float:
    """Return the bytes that the busiest rank sends per step."""
    width, size = row_bytes(demand.dim, demand.wire), demand.world_size
    match placement:
        case "rows":
            asked = ID_BYTES if demand.is_open else PLACE_BYTES
            return demand.unique * (asked + 2 * width) * (size - 1) / size
        case "table":  # Its rank answers all others, each of which sends positions and gradients.
            return demand.unique * max((size - 1) * width, PLACE_BYTES + width)
        case "replicate":
            return 8.0 * demand.rows * demand.dim * (size - 1) / size


def costs_of(demands: Sequence[TableDemand], link: LinkSpeed | None = None) -> list[list[PlacementCost]]:
    """Return the costs of each table's allowed placements.

    First the placement in the cheapest model.

    The others follow by their cost. The messages of a lookup are paid once, if one of its tables is exchanged,
    and so is the message of gradients. Dense gradients have one message. Tables that share calls are taken to share all
    of them.
    """
    link = link or LinkSpeed()
    costs = [
        sorted((cost_of(name, demand, link, len(demands)) for name in demand.known), key=lambda cost: cost.seconds)
        for demand in demands
    ]
    exchanged = _exchanged(demands, link)
    for each, demand, is_exchanged in zip(costs, demands, exchanged, strict=True):
        if demand.world_size > 1:
            each.sort(key=lambda cost: (cost.placement == "replicate") == is_exchanged)
    return costs


def _exchanged(demands: Sequence[TableDemand], link: LinkSpeed) -> list[bool]:
    """Return whether each table is exchanged in the cheapest model.

    The others are replicated.
    """
    gains_s = [_gain_s(demand, link) for demand in demands]
    forced = [not demand.may_be_replicated for demand in demands]
    sharing = [number for number, demand in enumerate(demands) if demand.shares_calls]
    alone = [[number] for number, demand in enumerate(demands) if not demand.shares_calls]
    chosen, chosen_s, every_s = set[int](), 0.0, 0.0
    for group in [sharing, *alone]:
        calls = 0.0 if any(forced[number] for number in group) else sum(demands[number].own_calls for number in group)
        calls_s = _LOOKUP_MESSAGES * calls * link.message_s
        gaining = {number for number in group if gains_s[number] > 0}
        every_s += sum(gains_s[number] for number in group) - calls_s
        gain_s = sum(gains_s[number] for number in gaining) - calls_s
        if gain_s > 0:
            chosen |= gaining
            chosen_s += gain_s
    if not any(forced):  # the gradients need a message
        every_s, chosen_s = every_s - link.message_s, chosen_s - link.message_s
    if not any(demand.is_open or demand.fixed == "replicate" for demand in demands):  # without replicas, no dense sum
        every_s += link.message_s
    if every_s > max(chosen_s, 0.0):
        return [demand.fixed != "replicate" for demand in demands]
    if chosen_s <= 0 and not any(forced):
        chosen = set()
    return [forced[number] or number in chosen for number in range(len(demands))]


def _gain_s(demand: TableDemand, link: LinkSpeed) -> float:
    """Return the seconds that exchange saves over replication.

    If the messages of both are paid for.
    """
    if len(demand.known) == 1 or demand.world_size == 1:
        return 0.0
    exchange_s = min(_numbers_s(name, demand, link) for name in demand.known if name != "replicate")
    return _numbers_s("replicate", demand, link) - exchange_s


def reason_of(demand: TableDemand, costs: Sequence[PlacementCost]) -> str:
    """Return one line: why the first of `costs` was chosen."""
    best, second = costs[0], costs[1]
    shared = ", with its share of the messages of lookups and gradients" if demand.shares_calls else ""
    return (
        f"{best.placement}: {demand.unique:,.0f} unique rows a rank and step, {bytes_text(best.sent_bytes)} and about "
        f"{best.seconds * 1e3:.2f} ms; {second.placement}: {bytes_text(second.sent_bytes)}, "
        f"{second.seconds * 1e3:.2f} ms{shared}"
    )


def validate_placements(placements: Placements) -> None:
    """Raises `InvalidOption` for an unknown placement."""
    known = (AUTO, *get_args(PlacementName))
    for each in [placements] if isinstance(placements, str) else placements.values():
        if each not in known:
            names = ", ".join(map(repr, known))
            raise InvalidOption(f"placement={each!r} is unknown. Choose one of {names}.", placement=each)
