"""Packed rows give the loss and the gradients of single documents, and no document sees another."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from forebay.data.loader.batch import Batch
from forebay.errors import InvalidOption
from forebay.llm.adapters import Lora
from forebay.llm.chat.documents import Document
from forebay.llm.loss import check_fused, token_loss
from forebay.llm.models import ModelSpec
from forebay.llm.packing import ID_BITS, START, RowLayout, arrange, num_targets
from forebay.llm.token_batch import document_numbers, unpack

VOCABULARY = 300
ATTENTION = ["documents", *(pytest.param(each, marks=pytest.mark.variation) for each in ("sdpa", "eager"))]


def documents() -> list[Document]:
    rng = np.random.default_rng(1)
    found = []
    for _ in range(24):
        ids = rng.integers(3, VOCABULARY, int(np.clip(rng.lognormal(3, 0.8), 2, 128))).astype(np.int32)
        found.append(Document(ids, np.arange(len(ids)) >= rng.integers(0, len(ids) - 1)))
    return found


def batch_of(packed: np.ndarray) -> Batch:
    arrays = {"tokens": torch.from_numpy(packed), "targets": torch.from_numpy(num_targets(packed))}
    return Batch(arrays, num_rows=len(packed), size=len(packed))


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
    # Each parameter has a gradient: ranks reduce the same ones.
    assert all(each.grad is not None and not each.grad.any() for each in model.parameters())


def liger(hidden: Any, weight: Any, labels: Any, bias: Any, *, reduction: str, accum_dtype: Any) -> torch.Tensor:
    """Function of Liger Kernel 0.8, which runs on GPUs only, by its documentation."""
    assert (reduction, accum_dtype, bias) == ("sum", torch.float32, None) and hidden.dtype == weight.dtype
    return functional.cross_entropy(hidden @ weight.T, labels, reduction="sum")


@pytest.mark.parametrize("has_targets", [True, False])
def test_a_fused_loss_is_that_of_targets(has_targets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = types.ModuleType("liger_kernel.transformers")
    found.functional = types.SimpleNamespace(liger_fused_linear_cross_entropy=liger)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "liger_kernel", types.ModuleType("liger_kernel"))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", found)
    model = model_of("sdpa")
    check_fused(model)
    packed = arrange(documents(), RowLayout(seq_len=128)) if has_targets else np.array([[START | 5, 6, 7]], np.int32)
    losses, gradients = [], []
    for kernel in ("torch", "liger"):
        model.zero_grad()
        loss = token_loss(model, batch_of(packed), kernel=kernel)  # type: ignore[arg-type]
        loss.backward()
        losses.append(loss.item())
        gradients.append(torch.cat([each.grad.flatten() for each in model.parameters()]))
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    assert torch.allclose(*gradients, atol=1e-6 * float(gradients[0].norm()))
    adapted = Lora(r=2, targets="all-linear,lm_head").add_to(model)
    with pytest.raises(InvalidOption, match="needs a plain linear output layer"):
        check_fused(adapted)


def loss_in_chunks(model: Any, packed: np.ndarray, chunk: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    model.zero_grad()
    loss = token_loss(model, batch_of(packed), chunk=chunk)
    loss.backward()
    return loss.detach(), [each.grad.clone() for each in model.parameters() if each.grad is not None]


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_loss_in_chunks_is_the_loss_and_its_gradient(lora: bool) -> None:
    packed = arrange(documents(), RowLayout(seq_len=128))
    model = model_of("sdpa")
    model = Lora(r=2).add_to(model) if lora else model
    whole, gradients = loss_in_chunks(model, packed, 0)
    for chunk in (50, 1024, 10**6):  # several chunks with a rest, one that ends within a row, and all in one
        loss, others = loss_in_chunks(model, packed, chunk)
        torch.testing.assert_close(loss, whole, rtol=1e-6, atol=0)
        torch.testing.assert_close(others, gradients, rtol=1e-4, atol=1e-5)


def test_logits_of_a_chunk_are_all_that_exist() -> None:
    model, packed = model_of("sdpa"), arrange(documents(), RowLayout(seq_len=128))
    largest = {}
    for chunk in (0, 32):
        seen: list[int] = []
        with LargestTensor(seen):
            token_loss(model, batch_of(packed), chunk=chunk).backward()
        largest[chunk] = max(seen)
    assert largest[0] >= packed.size * VOCABULARY
    assert largest[32] < largest[0] / 2


def test_logits_are_those_of_targets_only() -> None:
    model, packed = model_of("documents"), arrange(documents(), RowLayout(seq_len=128))
    seen: list[int] = []
    with LargestTensor(seen):
        token_loss(model, batch_of(packed)).backward()
    assert max(seen) == num_targets(packed).sum() * VOCABULARY < packed.size * VOCABULARY


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of every tensor with an entry of the vocabulary in its last dimension."""

    def __init__(self, seen: list[int]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.shape[-1:] == (VOCABULARY,) and result.dim() == 2:
            self.seen.append(result.numel())
        return result


def test_model_that_changes_its_logits_is_refused_in_chunks() -> None:
    config = transformers.Gemma2Config(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        head_dim=16, vocab_size=VOCABULARY, final_logit_softcapping=1.0,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    batch = batch_of(arrange(documents(), RowLayout(seq_len=128)))
    with pytest.raises(InvalidOption, match=r"Gemma2ForCausalLM changes the logits .* Set loss_chunk=0"):
        token_loss(model, batch, chunk=32)
    assert token_loss(model, batch, chunk=0) > 0
    assert "forward" not in model.get_output_embeddings().__dict__


def test_a_loss_that_is_not_a_number_is_no_change_of_logits() -> None:
    model = model_of("sdpa")
    with torch.no_grad():
        model.get_output_embeddings().weight[3] = torch.nan
    batch = batch_of(arrange(documents(), RowLayout(seq_len=128)))
    assert token_loss(model, batch, chunk=32).isnan()


def test_rows_are_flattened_for_flash_attention_with_the_same_loss() -> None:
    """Every row begins with a document, and its first token is not a target. So one long row has the same loss."""
    model, packed = model_of("eager"), arrange(documents(), RowLayout(seq_len=128))
    loss, gradients = loss_in_chunks(model, packed, 1024)
    flat, others = loss_in_chunks(model, packed.reshape(1, -1), 1024)
    torch.testing.assert_close(flat, loss, rtol=1e-5, atol=0)
    torch.testing.assert_close(others, gradients, rtol=1e-4, atol=1e-5)
    shapes = []
    model.register_forward_pre_hook(lambda _, __, given: shapes.append(given["input_ids"].shape), with_kwargs=True)
    token_loss(model, batch_of(packed))
    # Flash attention itself needs a GPU: eager attention computes here what it would be given.
    model.config._attn_implementation_internal = "flash_attention_2"
    with contextlib.suppress(ImportError, RuntimeError, TypeError, ValueError, KeyError):
        token_loss(model, batch_of(packed))
    assert shapes == [packed.shape, (1, packed.size)]
