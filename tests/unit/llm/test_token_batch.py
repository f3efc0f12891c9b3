from __future__ import annotations

import numpy as np
import torch

from forebay.llm.chat.documents import Document
from forebay.llm.packing import RowLayout, arrange
from forebay.llm.token_batch import document_numbers, token_rows, unpack


def test_rows_become_the_tensors_of_a_model() -> None:
    documents = [
        Document(np.array([5, 6, 7], np.int32), np.array([True, False, True])),
        Document(np.array([1 << 23, 9], np.int32), np.array([False, True])),
    ]
    packed = torch.from_numpy(arrange(documents, RowLayout(seq_len=7, pad=3)))
    batch = unpack(packed)
    assert {each.dtype for each in batch} == {torch.int64}
    assert batch.input_ids.tolist() == [[5, 6, 7, 1 << 23, 9, 3, 3]]
    assert batch.labels.tolist() == [[-100, -100, 7, -100, 9, -100, -100]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1, 0, 1]]
    assert document_numbers(packed).tolist() == [[0, 0, 0, 1, 1, 2, 2]]


def test_the_transform_has_one_fingerprint() -> None:
    assert token_rows().fingerprint == token_rows().fingerprint
