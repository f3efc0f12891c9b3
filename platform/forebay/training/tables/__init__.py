"""Embedding tables larger than a device (`docs/embedding-tables.md`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.runtime.late_import import lazy_names

if TYPE_CHECKING:
    from forebay.training.tables.optimizers import LazyAdam as LazyAdam
    from forebay.training.tables.optimizers import RowSGD as RowSGD
    from forebay.training.tables.optimizers import RowWiseAdagrad as RowWiseAdagrad
    from forebay.training.tables.options import Tables as Tables
    from forebay.training.tables.table import Lookup as Lookup
    from forebay.training.tables.table import look_up as look_up
    from forebay.training.tables.vocabulary.admission import Admission as Admission
    from forebay.training.tables.warm_start.options import WarmStart as WarmStart

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "Admission": "forebay.training.tables.vocabulary.admission",
        "LazyAdam": "forebay.training.tables.optimizers",
        "Lookup": "forebay.training.tables.table",
        "RowSGD": "forebay.training.tables.optimizers",
        "RowWiseAdagrad": "forebay.training.tables.optimizers",
        "Tables": "forebay.training.tables.options",
        "WarmStart": "forebay.training.tables.warm_start.options",
        "look_up": "forebay.training.tables.table",
    },
)
