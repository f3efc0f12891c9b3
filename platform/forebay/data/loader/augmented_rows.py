"""Gathered rows of an epoch, changed by a user's augment."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from forebay.data.kernels.calls import load_random
from forebay.data.manifest.file_rows import FileRows
from forebay.data.plan.order import Order, PositionedRows
from forebay.data.transform.augment import Augment
from forebay.data.transform.block import ArraySchema, Block
from forebay.data.transform.row_random import RowRandom
from forebay.runtime.memory.pool import BufferPool

_NAMED_ROWS = 3

Arrays = dict[str, NDArray[np.generic]]


class AugmentedRows:
    """Augmentation of gathered rows.

    Calls `augment` with random numbers that belong to the rows of `plan` in `epoch`.

    Arrays that the function makes are copied into memory of `pool`. It may keep them and write into them again, and
    only the pool's memory is page-locked for a GPU.
    """

    def __init__(self, augment: Augment, plan: Order, pool: BufferPool, *, epoch: int) -> None:
        load_random()
        self._augment, self._plan, self._pool, self._epoch = augment, plan, pool, epoch
        self._key = plan.row_key(epoch)
        self._schema: ArraySchema | None = None

    def apply(self, arrays: Arrays, num_bytes: int, rows: PositionedRows) -> tuple[Arrays, int]:
        """Changed arrays of `rows`, and their bytes.

        `arrays` fill `num_bytes` bytes of the pool.

        Raises `AugmentFailed` as `Augment.apply`, and for another dtype or shape than in the first batch.
        """
        rng = RowRandom(self._key, self._plan.row_numbers(rows))
        block = self._augment.apply(arrays, rng, where=partial(self._place, rows))
        self._validate_schema(block, rows)
        own = {id(array) for array in arrays.values()}
        made = {name: array for name, array in block.arrays.items() if id(array) not in own}
        if not made:
            return dict(block.arrays), num_bytes
        copies, copied_bytes = self._pool.lease_arrays({name: (each.dtype, each.shape) for name, each in made.items()})
        for name, array in made.items():
            np.copyto(copies[name], array)
        kept_bytes = num_bytes if len(made) < len(block.arrays) else 0
        return {name: copies.get(name, array) for name, array in block.arrays.items()}, kept_bytes + copied_bytes

    def _validate_schema(self, block: Block, rows: PositionedRows) -> None:
        # Compared in any order: a function may build its mapping as it likes.
        schema = tuple(sorted(block.schema))
        if self._schema is None:
            self._schema = schema
        if schema == self._schema:
            return
        found, expected = _by_name(schema), _by_name(self._schema)
        name = next(each for each in sorted({*found, *expected}) if found.get(each) != expected.get(each))
        raise self._augment.failure(
            f"returned {name!r} as {found.get(name, 'nothing')} for {self._place(rows)}, and as "
            f"{expected.get(name, 'nothing')} for the first batch of this pass. Return the same names, dtypes and "
            "trailing shapes for every batch of an epoch: cast, or cut to one size.",
            array=name,
        )

    def _place(self, rows: PositionedRows) -> str:
        """Text that locates the rows.

        Their batch, and the first ones by file.
        """
        position = f"epoch {self._epoch}, position {rows.position[0]}"
        if self._plan.windows:
            return f"the batch at {position} ({len(rows.row)} windows)"
        files = FileRows.of(self._plan.manifests, rows.block[:_NAMED_ROWS], rows.row[:_NAMED_ROWS], self._plan.names)
        named = ", ".join(map(str, islice(files, _NAMED_ROWS)))
        more = f" and {len(rows.row) - _NAMED_ROWS} more" if len(rows.row) > _NAMED_ROWS else ""
        return f"the batch at {position} (rows {named}{more})"


def _by_name(schema: ArraySchema) -> Mapping[str, str]:
    return {name: f"{dtype} {[*tail]}" for name, dtype, tail in schema}
