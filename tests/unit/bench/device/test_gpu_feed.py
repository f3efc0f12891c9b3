"""The bench of the GPU feed measures where there is a GPU, and says that it needs one elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from bench.device.gpu_feed import NO_GPU, figures


def test_it_measures_or_says_that_it_needs_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(tmp_path, quick=True)
    assert len(found) == int(torch.cuda.is_available())
    assert (NO_GPU in capsys.readouterr().out) != torch.cuda.is_available()
