"""Share of time in which a GPU did nothing, sampled by NVML."""

from __future__ import annotations

import threading
from importlib.util import find_spec
from types import TracebackType
from typing import Self

import torch

_EVERY_S = 0.05
PIP_LINE = "pip install nvidia-ml-py"


class GpuIdle:
    """Context manager that samples the utilization of a GPU every 50 ms. `shares` are the idle shares.

    Without NVML's package `shares` stays empty: `PIP_LINE` installs it.
    """

    def __init__(self, device: torch.device) -> None:
        self.shares: list[float] = []
        self._device, self._ends = device, threading.Event()
        self._thread = threading.Thread(target=self._run, name="forebay-doctor", daemon=True)

    def __enter__(self) -> Self:
        if find_spec("pynvml") is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        # torch finds the device's number in NVML, which may differ from CUDA's.
        while not self._ends.wait(_EVERY_S):
            self.shares.append(1 - torch.cuda.utilization(self._device) / 100)
