"""Parameters and table rows that are not finite."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from forebay.training.state.setup import LocalParts, LocalTable


def bad_parameter(model: nn.Module, parts: LocalParts) -> str | None:
    """Return a parameter or table row with NaN or infinity.

    Waits for the device once. Buffers are not read: masks hold infinity.
    """
    values: list[tuple[str | LocalTable, Tensor]] = [
        (name, parts.value(parameter).detach()) for name, parameter in model.named_parameters()
    ]
    values += [(table, table.weight()) for table in parts.tables]
    watched = [(source, part) for source, part in values if part.is_floating_point() and part.numel()]
    # One pass at the speed of memory, read once. A sum of finite numbers may overflow. Then all are read.
    totals: dict[torch.device, list[Tensor]] = {}
    for _, parameter in watched:
        totals.setdefault(parameter.device, []).append(parameter.sum().double())
    if all(math.isfinite(torch.stack(found).sum().item()) for found in totals.values()):
        return None
    bad = ((source, part) for source, part in watched if not bool(torch.isfinite(part).all()))
    return next((_place_of(source, part) for source, part in bad), None)


def _place_of(source: str | LocalTable, values: Tensor) -> str:
    """Name the parameter or table rows with non-finite `values`."""
    if isinstance(source, str):
        return f"parameter {source!r}"
    rows = (~torch.isfinite(values)).any(1).nonzero()[:, 0]
    more = f" and {len(rows) - 1:,} more" if len(rows) > 1 else ""
    return f"row {source.id_of(int(rows[0]))}{more} of table {source}"
