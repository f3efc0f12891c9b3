"""Tensors of host batches, kept with the memory that they describe."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from forebay.runtime.memory.pool import leased_memory

_MOST_KEPT = 8
"""Batches are copied from about five buffers in turn."""


class HostTensors:
    """Tensors of the arrays of a pool, for batches that only a copy to a device reads.

    torch hands the GIL over twice to free a tensor of NumPy's memory. So tensors are made once for each buffer and
    layout. They do not hold the lease on their memory: the caller holds the arrays as long as they are read.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[object, ...], dict[str, torch.Tensor]] = OrderedDict()

    def of(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
        """Tensors on the memory of `arrays`."""
        key = tuple(
            (name, *map(_facts(array).get, ("data", "shape", "strides", "typestr"))) for name, array in arrays.items()
        )
        found = self._kept.get(key)
        if found is None:
            found = {name: torch.from_numpy(_without_lease(array)) for name, array in arrays.items()}
            self._kept[key] = found
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(key)
        return dict(found)


def _facts(array: NDArray[Any]) -> dict[str, Any]:
    return array.__array_interface__


def _without_lease(array: NDArray[Any]) -> NDArray[Any]:
    """The same items, as a view of the memory below the lease.

    Memory of NumPy's own has no lease, and no other batch gets it while the view is there.
    """
    memory = leased_memory(array)
    if memory is None:
        return array
    offset = _facts(array)["data"][0] - _facts(memory)["data"][0]
    return np.ndarray(array.shape, array.dtype, buffer=memory, offset=offset, strides=array.strides)
