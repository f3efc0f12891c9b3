"""Bytes that each rank reads of an earlier run's tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.training.tables.warm_start.test_warm_start import TablesByName, rows_after
from torch import nn

from forebay.data.loader.data import Data
from forebay.training.collectives.collective import Collective, SingleProcessCollective
from forebay.training.tables.model_tables import ModelTables
from forebay.training.tables.optimizers import RowWiseAdagrad
from forebay.training.tables.options import Tables
from forebay.training.tables.warm_start.options import WarmStart

ROWS, DIM = 120_000, 16
EDGES_BYTES = 3 << 20
"""Blocks with a checksum are read whole, at both ends of a rank's rows."""


class StartedModel(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.tables = TablesByName({"user": {"rows": rows, "dim": DIM}}).tables


def read_bytes(collective: Collective, run: str, rows: int, placement: str) -> int:
    """Start a table from `run`. Returns the bytes that this process read meanwhile."""
    model = StartedModel(rows)
    options = Tables(RowWiseAdagrad(lr=0.1), placement=placement, start=WarmStart(run=run))
    tables = ModelTables(model, options, collective, seed=3)
    assert model.tables["user"].shared.owned.tensors  # Start values are made now, and not read.
    before = _read()
    (line,) = tables.start()
    assert f"has {ROWS:,} of {ROWS:,} rows" in line
    return _read() - before


def _read() -> int:
    facts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(facts["rchar"])


@pytest.mark.parametrize("rows", [ROWS, ROWS + 1000])
def test_a_rank_reads_the_rows_that_it_owns(
    ranks: Callable[..., list[Any]], make_data: Callable[..., Data], make_recorder: Any, tmp_path: Path, rows: int
) -> None:
    options = {"user": {"rows": ROWS, "dim": DIM}}
    rows_after(SingleProcessCollective(), make_data(lanes=4), str(tmp_path / "monday"), options, 2, make_recorder)
    whole = ROWS * (4 * DIM + 4)
    found = ranks(3, read_bytes, str(tmp_path / "monday"), rows, "rows")
    assert max(found) < whole / 3 + EDGES_BYTES
    replicas = ranks(2, read_bytes, str(tmp_path / "monday"), rows, "replicate")
    assert min(replicas) > whole
