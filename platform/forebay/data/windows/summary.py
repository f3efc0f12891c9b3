"""Summary of the values of some steps: what statistics of any set of blocks are folded from."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from forebay.data.transform.block import BlockArray

Summary = NDArray[np.float64]
"""float64 [columns, 7]: one row per column, with the entries below."""

COUNT: Final = 0
"""Number of values that are not NaN."""
NULLS: Final = 1
INFINITE: Final = 2
MIN: Final = 3
MAX: Final = 4
SUM: Final = 5
"""Sum of the finite values."""
SQUARES: Final = 6
"""Sum of squared distances of the finite values from their mean."""
NUM_ENTRIES: Final = 7


def summarize(values: BlockArray) -> Summary:
    """Summary of `values` [steps, columns], 56 bytes a column. A pure function of the values, also in the last bit.

    NumPy's sum is pairwise: its error grows with the logarithm of the number of values. `min` and `max` include
    infinities; without values they are inf and -inf.
    """
    summary = np.zeros((values.shape[1], NUM_ENTRIES))
    for column, entries in enumerate(summary):
        wide = values[:, column].astype(np.float64)
        present = wide[~np.isnan(wide)]
        finite = present[np.isfinite(present)]
        entries[COUNT], entries[NULLS] = len(present), len(wide) - len(present)
        entries[INFINITE] = len(present) - len(finite)
        entries[MIN], entries[MAX] = present.min(initial=np.inf), present.max(initial=-np.inf)
        entries[SUM] = finite.sum()
        entries[SQUARES] = np.square(finite - entries[SUM] / max(len(finite), 1)).sum()
    return summary
