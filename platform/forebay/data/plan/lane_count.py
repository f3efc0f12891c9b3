"""Default number of lanes of a plan, and default size of their windows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LEAST_LANES = 16
MOST_LANES = 1024
GROUPS_PER_LANE = 32
OPEN_BYTES = 16 << 30
WINDOW_ROWS = 65_536
SHUFFLED_ROWS = 1 << 20
LEAST_WINDOW_ROWS = 4096


def choose_lanes(group_bytes: NDArray[np.int64]) -> int:
    """Number of lanes: a power of two from 16 to 1024 that depends only on the row groups.

    It is the largest one that leaves each lane 32 row groups, and for which one row group per lane takes at most 16
    GiB. The first batch needs a row group of every lane, so it comes after at most 3 % of an epoch's reads. The row
    groups that all ranks hold open together are bounded. Small datasets have 16 lanes. ADR 0020 has the measurements.

    Args:
        group_bytes: Uncompressed bytes of each row group, int64 [row groups].

    >>> [choose_lanes(np.full(groups, 1 << 20)) for groups in (1, 1000, 10_000, 1_000_000)]
    [16, 16, 256, 1024]
    """
    mean_bytes = max(int(group_bytes.sum()) // len(group_bytes), 1)
    most = min(len(group_bytes) // GROUPS_PER_LANE, OPEN_BYTES // mean_bytes, MOST_LANES)
    return max(1 << max(most, 1).bit_length() - 1, LEAST_LANES)


def choose_window(lanes: int) -> int:
    """Rows of a window: 65,536 up to 16 lanes, 1,048,576 / lanes for more, but at least 4,096.

    Mixing and memory depend on the windows of all lanes together. Computing the order of a window costs as much as some
    thousand rows, and row groups below its size are held completely anyway.

    >>> [choose_window(lanes) for lanes in (1, 16, 17, 64, 1024)]
    [65536, 65536, 61680, 16384, 4096]
    """
    return max(min(WINDOW_ROWS, SHUFFLED_ROWS // lanes), LEAST_WINDOW_ROWS)
