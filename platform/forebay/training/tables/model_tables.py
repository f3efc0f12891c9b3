"""A model's tables on one rank.

They are placed, trained and saved together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from forebay.errors import InvalidOption
from forebay.runtime.formatting import bytes_text
from forebay.training.checkpoint.parts.contents import Region
from forebay.training.collectives.collective import Collective
from forebay.training.state.setup import LocalTable
from forebay.training.strategies.flat_part import FlatPart, flat_span
from forebay.training.tables.exchange.gradients import reduce_together
from forebay.training.tables.lookup.batch_features import BatchFeatures
from forebay.training.tables.options import Tables
from forebay.training.tables.owned_rows import DECAYED, OwnedRows, TableFacts
from forebay.training.tables.placement import (
    AUTO,
    MEASURED_STEPS,
    START_BYTES,
    LinkSpeed,
    PlacementName,
    TableDemand,
    costs_of,
    reason_of,
)
from forebay.training.tables.shared_rows import SharedRows, TableUse
from forebay.training.tables.table import Table
from forebay.training.tables.vocabulary.admitted_rows import AdmittedRows
from forebay.training.tables.vocabulary.open_rows import OpenRows
from forebay.training.tables.warm_start.saved_tables import earlier_tables
from forebay.training.tables.warm_start.started_tables import StartedTables

log = logging.getLogger(__name__)

_Counts = tuple[float, ...]


@dataclass(slots=True)
class _Measured:
    """A rank's use of a table in the first steps.

    Of a world of `world_size`, for placement "auto".

    `counts` are unique rows, calls and own calls, as in `TableUse`. `seen` are those that were counted before a step.
    """

    world_size: int
    steps: int = 0
    counts: _Counts = (0.0, 0.0, 0.0)
    seen: _Counts = (0.0, 0.0, 0.0)

    @property
    def is_done(self) -> bool:
        return self.steps >= MEASURED_STEPS

    def count(self, use: TableUse) -> None:
        """Count a step."""
        now = _counts_of(use)
        self.counts = tuple(total + new - old for total, new, old in zip(self.counts, now, self.seen, strict=True))
        self.steps, self.seen = self.steps + 1, now


class ModelTables:
    """`Stateful` of the tables of `model`.

    All ranks call every method alike.

    A state has `FlatPart`s of tables in the order of `TableLayout`: it depends on neither world size nor placement.
    """

    def __init__(
        self,
        model: nn.Module,
        options: Tables,
        collective: Collective,
        *,
        seed: int,
        rows_done: Callable[[], int] = lambda: 0,
    ) -> None:
        """Start with `rows_done`, which returns the rows trained before.

        Rows are global.
        """
        self._options, self._collective, self._seed, self._rows_done = options, collective, seed, rows_done
        self._modules = {name: module for name, module in model.named_modules() if isinstance(module, Table)}
        self._tensors = collective.tensor_collectives()
        size = collective.world.size
        self._measured = {name: _Measured(size) for name in self._modules}
        self._step = 0
        self._is_restored = False
        self._require_known(options)
        features = BatchFeatures(model)
        for name, module in self._modules.items():
            module.features = features
            self._place(name, self._start_placement(name))

    @property
    def shared(self) -> Mapping[str, SharedRows | OpenRows]:
        """Tables by their path in the model."""
        return {name: _shared_of(module) for name, module in self._modules.items()}

    @property
    def _fixed(self) -> Mapping[str, SharedRows]:
        return {name: shared for name, shared in self.shared.items() if isinstance(shared, SharedRows)}

    @property
    def _open(self) -> Mapping[str, OpenRows]:
        return {name: shared for name, shared in self.shared.items() if isinstance(shared, OpenRows)}

    def step(self, rate: float = 1.0) -> None:
        """Step all tables' optimizers, at `rate` times the rate.

        Then place the tables whose use is known by now.
        """
        self._step += 1
        reduce_together(self.shared.values())
        for shared in self.shared.values():
            shared.update(self._step, rate * self._options.optimizer.lr)
        self._measure()

    def squared_norm(self) -> Tensor:
        """Return the tables' squared gradient norm, float64.

        Over all ranks.
        """
        reduce_together(self.shared.values())
        total = torch.zeros((), dtype=torch.float64)
        for shared in self.shared.values():
            total += shared.squared_norm()
        return torch.from_numpy(self._collective.all_reduce(total.reshape(1).numpy())).reshape(())

    def scale(self, factor: Tensor) -> None:
        """Multiply all gradients by a scalar."""
        reduce_together(self.shared.values())
        for shared in self.shared.values():
            shared.scale(factor)

    def zero_grad(self) -> None:
        """Forget all gradients since the last step."""
        for shared in self.shared.values():
            shared.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        rows = {name: _saved(shared) for name, shared in self._fixed.items()}
        return {
            "step": self._step,
            "rows": {**rows, **{name: shared.parts() for name, shared in self._open.items()}},
            "open": {name: shared.state() for name, shared in self._open.items()},
            "decay": {name: shared.owned.decay for name, shared in self._fixed.items()},
            "placement": {name: shared.placement for name, shared in self._fixed.items()},
            "padding": {name: each.padding_id for name, each in self._modules.items() if each.padding_id is not None},
            "measured": {name: [each.world_size, each.steps, *each.counts] for name, each in self._measured.items()},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        found = state_dict["rows"]
        if other := sorted(found.keys() ^ self._modules.keys()):
            raise ValueError(f"the checkpoint and the model do not have the same tables: {', '.join(other)}")
        self._step, self._is_restored = state_dict["step"], True
        for name, shared in self._fixed.items():
            if "ids" in found[name]:
                raise ValueError(f"the saved table {name!r} has admission=, and the model's table has not")
            if missing := sorted(shared.owned.shapes().keys() - found[name].keys() - {DECAYED}):
                raise ValueError(f"table {name!r} has no saved state {missing[0]!r}, which its optimizer has")
            shared.discard()
            shared.owned.decay = state_dict["decay"][name]
            shared.owned.adopt({key: self._own_part(shared, name, key, each) for key, each in found[name].items()})
            self._follow(name, state_dict)
        for name, opened in self._open.items():
            opened.load(found[name], state_dict.get("open", {}).get(name, {}))

    def restored(self, path: str, shape: tuple[int, ...], read: Callable[[Region], Tensor]) -> Tensor | FlatPart:
        """Return what this rank holds of the saved tensor `path`, e.g.

        "user.weight", of `shape`.
        """
        name, _, key = path.rpartition(".")
        shared = self.shared.get(name)
        if isinstance(shared, OpenRows):
            return shared.restored(key, shape, read)
        begin, end = (0, shape[0]) if shared is None else (shared.owned.begin, min(shared.owned.end, shape[0]))
        begin = min(begin, end)  # A table of fewer rows is refused once all of the state is read.
        values = read(((begin, *(0 for _ in shape[1:])), (end - begin, *shape[1:])))
        return FlatPart(shape=shape, start=begin * int(np.prod(shape[1:], dtype=np.int64)), values=values.reshape(-1))

    def start(self) -> list[str]:
        """Load rows of an earlier run, unless a state was loaded.

        Returns what to say of it.
        """
        start = self._options.start
        if start is None or self._is_restored:
            return []
        with earlier_tables(start) as earlier:
            lines = StartedTables(self.shared, self._collective, start).take_over(earlier)
            # LazyAdam corrects its moments by it.
            self._step = earlier.optimizer_step
        return lines

    def local_tables(self) -> tuple[LocalTable, ...]:
        """Return where monitors find the rows of this rank.

        They may move, and be replaced by a restore.
        """
        return tuple(
            LocalTable(
                name=name,
                weight=partial(self._weight, name),
                id_of=partial(self._id, name),
                feature=module.feature_text,
            )
            for name, module in self._modules.items()
        )

    def _weight(self, name: str) -> Tensor:
        return self.shared[name].weight()

    def _id(self, name: str, row: int) -> int:
        return self.shared[name].id_of(row)

    def lines(self) -> list[str]:
        """Return a line per table: size, placement, memory."""
        size = self._collective.world.size
        found = []
        for name, opened in self._open.items():
            found.append(
                f"table {name!r}: open, up to {opened.facts.rows:,} x {opened.facts.dim}, over {size} ranks, "
                f"{bytes_text(opened.rows.num_bytes)} on this rank"
            )
        for name, shared in self._fixed.items():
            total = shared.facts.rows * shared.facts.row_bytes(self._options.optimizer)
            found.append(
                f"table {name!r}: {shared.facts.rows:,} x {shared.facts.dim}, {bytes_text(total)} with state, "
                f"placement {shared.placement} over {size} ranks, {bytes_text(shared.owned.num_bytes)} on this rank"
            )
        return found

    def _place(self, name: str, placement: PlacementName) -> None:
        module = self._modules[name]
        facts = TableFacts(name=name, rows=module.rows, dim=module.dim, scale=module.scale, seed=self._seed)
        options, device = self._options, self._collective.device
        if module.admission is not None:
            rows = AdmittedRows(facts, options.optimizer, device)
            module.shared = OpenRows(
                self._tensors, module.admission, rows, facts, wire=options.wire, rows_done=self._rows_done
            )
            return
        module.shared = SharedRows(
            self._tensors,
            placement,
            lambda span: OwnedRows(facts, span, options.optimizer, device),
            home=list(self._modules).index(name),
            wire=options.wire,
        )

    def _start_placement(self, name: str) -> PlacementName:
        option, module = self._option(name), self._modules[name]
        if module.admission is not None:
            return "rows"
        if option != AUTO:
            return cast(PlacementName, option)
        if self._collective.world.size == 1:
            return "rows"
        return "replicate" if 4 * module.rows * module.dim <= START_BYTES else "rows"

    def _option(self, name: str) -> str:
        placement = self._options.placement
        return placement if isinstance(placement, str) else placement.get(name, AUTO)

    def _follow(self, name: str, state: Mapping[str, Any]) -> None:
        """Load the measured use and the placement of a world.

        Of a world of this size.
        """
        if self._option(name) != AUTO:
            return
        world_size, steps, unique, *calls = state["measured"][name]
        if world_size != self._collective.world.size:
            self._measured[name] = _Measured(self._collective.world.size)
            return
        # Older checkpoints do not have calls: each lookup was one of its own.
        counts = (unique, *(calls or (steps, steps)))
        self._measured[name] = _Measured(world_size, steps, counts, _counts_of(self._fixed[name].use))
        if self._fixed[name].placement != state["placement"][name]:
            self._move(name, state["placement"][name])

    def _measure(self) -> None:
        """Count the lookups of a step.

        All ranks decide after the same step, by the same numbers.
        """
        waiting = [name for name in self._fixed if self._option(name) == AUTO and not self._measured[name].is_done]
        if self._collective.world.size == 1 or not waiting:
            return
        for name, shared in self.shared.items():
            self._measured[name].count(shared.use)
        if ended := [name for name in waiting if self._measured[name].is_done]:
            self._decide(ended)

    def _decide(self, names: Sequence[str]) -> None:
        """Place tables by the use of all of them."""
        demands = self._demands(decided=names)
        costs = dict(zip(demands, costs_of(list(demands.values()), LinkSpeed.of(self._options.link_mbit)), strict=True))
        for name in names:
            if self._collective.world.is_first:
                reason = reason_of(demands[name], costs[name])
                log.info("table %r is placed as %s", name, reason)
            if costs[name][0].placement != self._fixed[name].placement:
                self._move(name, costs[name][0].placement)

    def _demands(self, decided: Sequence[str]) -> dict[str, TableDemand]:
        """Return each table's mean use over ranks and steps.

        Those not to be decided stay where they are.
        """
        rates = [np.divide(each.counts, max(each.steps, 1)) for each in self._measured.values()]
        means = self._collective.all_reduce(np.stack(rates)) / self._collective.world.size
        found = {}
        for (name, shared), (unique, calls, own_calls) in zip(self.shared.items(), means.tolist(), strict=True):
            is_open = isinstance(shared, OpenRows)
            found[name] = TableDemand(
                rows=shared.facts.rows,
                dim=shared.facts.dim,
                unique=unique,
                world_size=self._collective.world.size,
                wire=self._options.wire,
                is_open=is_open,
                calls=calls,
                own_calls=own_calls,
                fixed=None if is_open or name in decided else self._fixed[name].placement,
            )
        return found

    def _move(self, name: str, placement: PlacementName) -> None:
        """Hold the rows of a table elsewhere.

        Each rank sees the whole table for a moment, tensor by tensor.
        """
        before = self._fixed[name]
        begin, end = before.saved_span
        self._place(name, placement)
        after = self._fixed[name]
        after.use, after.owned.decay = before.use, before.owned.decay
        moved = {}
        for key, values in before.owned.tensors.items():
            whole = values.new_zeros(before.facts.rows, *values.shape[1:])
            whole[begin:end] = values[begin - before.owned.begin : end - before.owned.begin]
            whole = self._tensors.all_reduce(whole)
            moved[key] = whole[after.owned.begin : after.owned.end].clone()
        after.owned.adopt(moved)

    def _own_part(self, shared: SharedRows, name: str, key: str, saved: Tensor | FlatPart) -> Tensor:
        """Return this rank's rows of a saved tensor."""
        owned, shape = shared.owned, shared.owned.shapes().get(key)
        if shape is None:
            raise ValueError(f"table {name!r} has saved state {key!r}, which its optimizer does not have")
        if tuple(saved.shape) != shape:
            raise ValueError(f"table {name!r} has {list(shape)} numbers, and the checkpoint has {list(saved.shape)}")
        width = int(np.prod(shape[1:], dtype=np.int64))
        span = flat_span(saved, owned.begin * width, (owned.end - owned.begin) * width)
        return span.to(self._collective.device).reshape(owned.end - owned.begin, *shape[1:])

    def _require_known(self, options: Tables) -> None:
        named = () if isinstance(options.placement, str) else options.placement
        if unknown := sorted(set(named) - self._modules.keys()):
            raise InvalidOption(
                f"placement names {', '.join(unknown)}, and the model has the tables {', '.join(self._modules)}.",
                unknown=unknown,
            )
        for name in (name for name, module in self._modules.items() if module.admission is not None):
            if (option := self._option(name)) not in {AUTO, "rows"}:
                raise InvalidOption(
                    f"placement={option!r} was given for table {name!r}, which has admission=. Each of its rows lies "
                    "on one rank: set 'rows' or 'auto'.",
                    placement=option,
                )


def _counts_of(use: TableUse) -> _Counts:
    return use.trained, use.calls, use.own_calls


def _shared_of(module: Table) -> SharedRows | OpenRows:
    assert module.shared is not None, "placed when it was found"
    return module.shared


def _saved(shared: SharedRows) -> dict[str, FlatPart]:
    owned, (begin, end) = shared.owned, shared.saved_span
    shapes = owned.shapes()
    return {
        key: FlatPart(
            shape=shapes[key],
            start=begin * int(np.prod(shapes[key][1:], dtype=np.int64)),
            values=values[begin - owned.begin : end - owned.begin].reshape(-1),
        )
        for key, values in owned.tensors.items()
    }
