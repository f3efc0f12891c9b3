"""Token rows as model inputs, computed on the device."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from forebay.data.transform.transform import Transform
from forebay.llm.packing import ID_BITS, START, TARGET
from forebay.llm.tokens import pair_arrays, reference_arrays, token_arrays

IGNORED = -100
"""Label of a token that does not count, as in torch and transformers."""


class TokenBatch(NamedTuple):
    """Model inputs, int64 [rows, seq_len], on the tokens' device.

    Attributes:
        input_ids: Token ids.
        labels: Ids of the targets, -100 elsewhere. Not shifted: the label of a token is its own id.
        position_ids: Position of each token in its document.
    """

    input_ids: Tensor
    labels: Tensor
    position_ids: Tensor


def token_rows() -> Transform:
    """Transform of prepared token rows.

    `tokens` int32 [rows, seq_len] and `targets` int32 [rows].
    """
    return Transform(fn=token_arrays, version="1")


def pair_rows(reference: int | None = None) -> Transform:
    """Transform of prepared pairs of answers.

    The arrays of `token_rows`, and `pairs` int32 [rows]. With `reference`, the most texts of a row, also `reference`
    float64 [rows, reference]: log-probabilities that `llm.with_reference` stored.
    """
    if reference is None:
        return Transform(fn=pair_arrays, version="1")
    return Transform(fn=partial(reference_arrays, reference), version=f"1 reference {reference}")


def unpack(packed: Tensor) -> TokenBatch:
    """Tensors of packed tokens, int32 [rows, seq_len].

    There is no attention mask on purpose. Positions that begin again keep documents apart in transformers (5.16 to
    5.19, eager and sdpa). A two-dimensional mask of ones switches that off silently: logits differ by 0.87 then.
    """
    ids = packed & ID_BITS
    index = torch.arange(packed.shape[1], device=packed.device, dtype=packed.dtype).expand_as(packed)
    first = torch.where((packed & START) != 0, index, 0).cummax(dim=1).values
    labels = torch.where((packed & TARGET) != 0, ids, IGNORED)
    return TokenBatch(ids.long(), labels.long(), (index - first).long())


def document_numbers(packed: Tensor) -> Tensor:
    """Index of each token's document, int64 [rows, seq_len]."""
    return ((packed & START) != 0).cumsum(dim=1) - 1


def document_tokens(packed: Tensor) -> Tensor:
    """Tokens of documents, bool [rows, n]. The others are the empty ends of rows.

    The end of a row is empty if it is a document without targets, all of whose tokens are the same.
    """
    index = torch.arange(packed.shape[1], device=packed.device)
    start = index - unpack(packed).position_ids
    is_last = start == start[:, -1:]
    ids = packed & ID_BITS
    is_empty = ~(is_last & (((packed & TARGET) != 0) | (ids != ids[:, -1:]))).any(dim=1, keepdim=True)
    return ~(is_last & is_empty)
