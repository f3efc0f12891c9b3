"""GPUs of a process, and of the machine around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.runtime import gpus
from forebay.runtime.gpus import GpuSupply, gpus_here


@pytest.mark.parametrize(
    ("nodes", "each", "room"), [([], 1, 0), ([1, 3], 2, 1), ([4, 4], 1, 8), ([1], 0.25, 4), ([2], 0.3, 6)]
)
def test_room_is_counted_node_by_node(nodes: list[float], each: float, room: int) -> None:
    assert GpuSupply(place="the cluster", nodes=tuple(nodes)).room(each) == room


@pytest.mark.parametrize(("found", "hidden", "unseen"), [(0, False, 2), (0, True, 0), (1, False, 0)])
def test_gpus_of_the_kernel_that_pytorch_does_not_find_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: int, hidden: bool, unseen: int
) -> None:
    for name in ("0000:17:00.0", "0000:65:00.0"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(gpus, "_NVIDIA", tmp_path)
    monkeypatch.setattr(gpus, "num_gpus", lambda: found)
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    if hidden:
        monkeypatch.setenv(gpus.VISIBLE, "")
    here = gpus_here()
    assert (here.total, here.unseen, here.grows) == (found, unseen, False)
