"""Draws of tokens that depend on seed, row and position alone."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.llm.score.engines.engine import Sampling

_GOLDEN, _ROW, _POSITION = (np.uint64(each) for each in (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0x8CB92BA72F3D8DD7))
_U30, _U27, _U31, _U11 = (np.uint64(each) for each in (30, 27, 31, 11))
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def gumbel_noise(seed: int, rows: NDArray[np.int64], positions: NDArray[np.int64], entries: int) -> NDArray[np.float32]:
    """Gumbel noise float32 [rows, entries]. The argmax of logits / temperature + noise is a draw from their softmax.

    The noise of an entry is a hash of seed, row, position and entry (the finaliser of splitmix64, twice; Steele et
    al., OOPSLA 2014). So it is the same in every batch, process and version of NumPy.
    """
    with np.errstate(over="ignore"):
        key = _mixed(np.uint64(seed) * _GOLDEN + rows.astype(np.uint64) * _ROW)
        key = _mixed(key + positions.astype(np.uint64) * _POSITION)
        bits = _mixed(key[:, None] + np.arange(1, entries + 1, dtype=np.uint64) * _GOLDEN)
    uniform = ((bits >> _U11).astype(np.float64) + 0.5) * 2.0**-53
    noise: NDArray[np.float32] = -np.log(-np.log(uniform)).astype(np.float32)
    return noise


def drawn_scores(logits: Tensor, rows: NDArray[np.int64], position: int, sampling: Sampling) -> Tensor:
    """Scores whose largest entry is the draw of each row at the generated `position`, float32 [rows, entries].

    `sampling` has a temperature above 0.
    """
    scaled = _truncated(logits / sampling.temperature, sampling)
    noise = gumbel_noise(sampling.seed, rows, np.full_like(rows, position), logits.shape[1])
    return scaled + torch.from_numpy(noise).to(logits.device)


def _truncated(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits with -inf for tokens that `top_k` and `top_p` leave out. The most likely token always stays."""
    if 0 < sampling.top_k < logits.shape[1]:
        least = logits.topk(sampling.top_k, dim=1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if sampling.top_p < 1:
        ordered, index = logits.sort(dim=1, descending=True, stable=True)
        before = ordered.softmax(dim=1).cumsum(dim=1) - ordered.softmax(dim=1)
        left_out = torch.zeros_like(before, dtype=torch.bool).scatter(1, index, before >= sampling.top_p)
        logits = logits.masked_fill(left_out, -torch.inf)
    return logits


def _mixed(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = (value ^ (value >> _U30)) * _FIRST
    value = (value ^ (value >> _U27)) * _SECOND
    mixed: NDArray[np.uint64] = value ^ (value >> _U31)
    return mixed
