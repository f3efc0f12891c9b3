"""Packed rows give the loss and the gradients of single documents, and no document sees another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from forebay.llm.chat import Document
from forebay.llm.models import ModelSpec
from forebay.llm.packing import ID_BITS, START, RowLayout, arrange, num_targets
from forebay.llm.token_batch import document_numbers, unpack
from forebay.llm.training.token_loss import token_loss
from forebay.loader.batch import Batch

VOCABULARY = 300
ATTENTION = ["sdpa", pytest.param("eager", marks=pytest.mark.variation)]


def documents() -> list[Document]:
    rng = np.random.default_rng(1)
    found = []
    for _ in range(24):
        ids = rng.integers(3, VOCABULARY, int(np.clip(rng.lognormal(3, 0.8), 2, 128))).astype(np.int32)
        found.append(Document(ids, np.arange(len(ids)) >= rng.integers(0, len(ids) - 1)))
    return found


def batch_of(packed: np.ndarray) -> Batch:
    arrays = {"tokens": torch.from_numpy(packed), "targets": torch.from_numpy(num_targets(packed))}
    return Batch(arrays, rows=len(packed), size=len(packed))


def model_of(attn: Any) -> Any:
    torch.manual_seed(0)
    return ModelSpec(name="tiny", vocab_size=VOCABULARY, attn=attn).build()


def loss_and_gradient(attn: str, packed: np.ndarray) -> tuple[float, torch.Tensor]:
    model, batch = model_of(attn), batch_of(packed)
    loss = token_loss(model, batch) / batch["targets"].sum()
    loss.backward()
    return loss.item(), torch.cat([each.grad.flatten() for each in model.parameters()])


@pytest.mark.parametrize("attn", ATTENTION)
def test_packed_rows_train_as_single_documents_do(attn: str) -> None:
    given = documents()
    packed = arrange(given, RowLayout(seq_len=128))
    alone = arrange(given, RowLayout(seq_len=128, packing="none"))
    assert len(packed) < len(alone) / 3
    assert num_targets(packed).sum() == num_targets(alone).sum()
    (loss, gradient), (right_loss, right_gradient) = (loss_and_gradient(attn, rows) for rows in (packed, alone))
    assert loss == pytest.approx(right_loss, rel=1e-6)
    assert (gradient - right_gradient).norm() / right_gradient.norm() < 1e-5


@pytest.mark.parametrize("attn", ATTENTION)
def test_another_document_changes_no_logit_of_its_neighbours(attn: str) -> None:
    packed = arrange(documents(), RowLayout(seq_len=128))
    changed = packed.copy()
    row = int(np.argmax(((packed & START) != 0).sum(axis=1)))
    number = document_numbers(torch.from_numpy(packed))[row].numpy()
    assert number.max() >= 2
    others = number != 1
    changed[row] = np.where(others, packed[row], (packed[row] & ~ID_BITS) | 5)
    model = model_of(attn)
    logits = []
    with torch.no_grad():
        for rows in (packed, changed):
            tokens = unpack(torch.from_numpy(rows))
            logits.append(model(input_ids=tokens.input_ids, position_ids=tokens.position_ids).logits[row].numpy())
    np.testing.assert_array_equal(logits[0][others], logits[1][others])
    assert np.abs(logits[0][~others] - logits[1][~others]).max() > 0.01


def test_a_mask_of_ones_would_let_documents_see_each_other() -> None:
    """Fails when transformers changes this: then the mask's absence is no longer what keeps documents apart."""
    tokens = unpack(torch.from_numpy(arrange(documents(), RowLayout(seq_len=128))))
    model = model_of("sdpa")
    with torch.no_grad():
        apart = model(input_ids=tokens.input_ids, position_ids=tokens.position_ids).logits
        mask = torch.ones_like(tokens.input_ids)
        mixed = model(input_ids=tokens.input_ids, position_ids=tokens.position_ids, attention_mask=mask).logits
    assert (apart - mixed).abs().max() > 0.01


def test_row_without_targets_has_the_loss_zero() -> None:
    model = model_of("sdpa")
    loss = token_loss(model, batch_of(np.array([[START | 5, 6, 7]], np.int32)))
    loss.backward()
    assert loss.item() == 0
    assert all(each.grad is None or not each.grad.any() for each in model.parameters())
