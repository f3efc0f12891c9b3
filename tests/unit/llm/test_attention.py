"""Attention by documents is attention with a mask: same logits and gradients, for all masks that a model asks for."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from forebay.errors import InvalidOption
from forebay.llm.attention import (
    DOCUMENTS,
    DocumentLengths,
    attend_by_documents,
    chosen_attention,
    document_attention,
    document_mask,
    flash_documents,
    known_packing,
)
from forebay.llm.loss import model_outputs
from forebay.llm.models import ModelSpec
from forebay.llm.packing import START
from forebay.llm.token_batch import unpack

POSITIONS = torch.tensor([[*range(5), *range(1), *range(10)], [*range(16)]])
SIZES = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
IDS = torch.randint(0, 50, (2, 16), generator=torch.Generator().manual_seed(1))
CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Masks that attention by documents was given."""
    seen: list[Any] = []

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        seen.append(mask)
        return document_attention(module, query, key, value, mask, **options)

    monkeypatch.setattr("forebay.llm.attention.document_attention", attend)
    return seen


def llama(**options: Any) -> transformers.LlamaConfig:
    return transformers.LlamaConfig(**SIZES, **options)


def made(config: Any, attn: str) -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    if attn == DOCUMENTS:
        attend_by_documents(model)
    else:
        model.set_attn_implementation(attn)
    return model.train()


def logits_and_gradients(model: Any, **inputs: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    logits = model(input_ids=IDS, use_cache=False, **inputs).logits
    logits.square().mean().backward()
    return logits.detach(), [each.grad for each in model.parameters()]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_documents_of_grouped_heads(masks: list[Any], checkpointing: bool) -> None:
    model = made(llama(), DOCUMENTS)
    if checkpointing:
        model.gradient_checkpointing_enable()
    found = logits_and_gradients(model, position_ids=POSITIONS)
    torch.testing.assert_close(found, logits_and_gradients(made(llama(), "eager"), position_ids=POSITIONS))
    assert masks and all(mask.lengths == [5, 1, 10, 16] for mask in masks)


@pytest.mark.parametrize(
    ("config", "inputs", "has_lengths"),
    [
        pytest.param(llama(), {"position_ids": torch.arange(16).expand(2, 16)}, False, id="one document a row"),
        pytest.param(llama(), {"attention_mask": (POSITIONS < 12).long()}, False, id="padded rows"),
        pytest.param(
            transformers.MistralConfig(**SIZES, sliding_window=16), {"position_ids": POSITIONS}, True, id="wide window"
        ),
        pytest.param(
            transformers.MistralConfig(**SIZES, sliding_window=7), {"position_ids": POSITIONS}, False, id="window"
        ),
        pytest.param(
            llama(is_causal=False),
            {"position_ids": POSITIONS},
            False,
            id="both directions",
            marks=pytest.mark.variation,
        ),
    ],
)
def test_other_masks_are_those_of_sdpa(
    masks: list[Any], config: Any, inputs: dict[str, Any], has_lengths: bool
) -> None:
    found = logits_and_gradients(made(config, DOCUMENTS), **inputs)
    torch.testing.assert_close(found, logits_and_gradients(made(config, "sdpa"), **inputs))
    assert {isinstance(mask, DocumentLengths) for mask in masks} == {has_lengths}


def test_a_mask_with_the_future_is_not_one_of_documents() -> None:
    """As models have it that let the tokens of an image see each other."""
    given = {"batch_size": 1, "q_length": 4, "kv_length": 4, "device": torch.device("cpu")}

    def sees(row: Any, head: Any, query: Any, key: Any) -> Any:
        return (key <= query) | ((query >= 1) & (key == 2))

    found = document_mask(**given, mask_function=sees, allow_is_causal_skip=False)
    assert isinstance(found, torch.Tensor)
    assert found[0, 0].tolist() == [[sees(0, 0, query, key) for key in range(4)] for query in range(4)]


FALCON = transformers.FalconConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)


def test_model_with_an_attention_of_its_own_is_refused() -> None:
    with pytest.raises(InvalidOption, match="attn='documents' does not work with FalconForCausalLM"):
        attend_by_documents(transformers.AutoModelForCausalLM.from_config(FALCON))


@pytest.mark.variation("one more model, from a folder")
def test_model_with_an_attention_of_its_own_has_sdpa(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # its thread has no end
    transformers.AutoModelForCausalLM.from_config(FALCON).save_pretrained(tmp_path)
    model: Any = ModelSpec(name=str(tmp_path), vocab_size=50).build()
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(InvalidOption, match="attn='documents' does not work with FalconForCausalLM"):
        ModelSpec(name=str(tmp_path), vocab_size=50, attn="documents").build()


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> None:
    """flash_attn as if it were installed."""
    found = importlib.util.find_spec
    spec = importlib.machinery.ModuleSpec("flash_attn", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "flash_attn" else found(name))


def test_choice_without_flash_attention() -> None:
    assert chosen_attention("auto", CPU) == "documents"
    assert chosen_attention("auto", GPU) == "flex_attention"
    assert chosen_attention("eager", GPU) == "eager"
    with pytest.raises(InvalidOption, match="needs the package flash_attn, which is missing. Install it: pip install"):
        chosen_attention("flash_attention_2", GPU)
    with pytest.raises(InvalidOption, match="attn='flex_attention' has no backward pass on a CPU"):
        chosen_attention("flex_attention", CPU)


def test_choice_with_flash_attention(flash: None) -> None:
    assert chosen_attention("auto", GPU) == "flash_attention_2"
    assert chosen_attention("auto", CPU) == "documents"
    with pytest.raises(InvalidOption, match="runs on GPUs only"):
        chosen_attention("flash_attention_2", CPU)


WORDS = np.where(POSITIONS.numpy() == 0, START | 5, 5).astype(np.int32)


def test_documents_of_flash_attention_are_those_that_transformers_finds() -> None:
    from transformers.modeling_flash_attention_utils import prepare_fa_kwargs_from_position_ids

    positions = unpack(torch.from_numpy(WORDS)).position_ids
    assert torch.equal(positions, POSITIONS)
    (ends, _), (longest, _) = prepare_fa_kwargs_from_position_ids(positions.reshape(1, -1))
    found = flash_documents(WORDS, CPU)
    assert torch.equal(found["cu_seq_lens_q"], ends) and found["cu_seq_lens_k"].dtype == torch.int32
    assert found["max_length_q"] == found["max_length_k"] == int(longest)


def test_packing_that_is_known_is_what_transformers_would_ask_the_device() -> None:
    for rows in (WORDS, WORDS[1:]):
        positions = unpack(torch.from_numpy(rows)).position_ids
        expected = transformers.masking_utils.find_packed_sequence_indices(positions)
        with known_packing(rows):
            found = transformers.masking_utils.find_packed_sequence_indices(positions)
            with known_packing(WORDS[:1]):
                assert transformers.masking_utils.find_packed_sequence_indices(positions) is not None
        assert (found is None) == (expected is None) == (len(rows) == 1)
        assert expected is None or torch.equal(found, expected)
        assert "ask" in transformers.masking_utils.find_packed_sequence_indices.__code__.co_freevars


def own_positions(config: Any) -> Any:
    """Model that makes its mask without the positions that it is given."""
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize(
    "config",
    [
        transformers.GptOssConfig(
            **SIZES, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=4, initializer_range=0.2
        ),
        transformers.OPTConfig(
            vocab_size=50, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4,
            word_embed_proj_dim=32, init_std=0.2,
        ),
        pytest.param(
            transformers.FalconConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
            marks=pytest.mark.variation,
        ),
    ],
    ids=["gpt-oss", "opt", "falcon"],
)  # fmt: skip
def test_documents_stay_apart_where_a_model_keeps_positions_from_its_mask(config: Any) -> None:
    model = own_positions(config)
    words = np.tile(WORDS[:1], (2, 1))
    words[1, :6] += 1  # other documents before the last one
    with torch.no_grad():
        logits = model_outputs(model, torch.from_numpy(words))
    assert torch.equal(logits[0, 6:], logits[1, 6:])
    assert (logits[0, :6] - logits[1, :6]).abs().max() > 1e-3


def test_documents_are_for_cpus() -> None:
    with pytest.raises(InvalidOption, match="which is for CPUs: on an H200, 17 steps of .* Set attn='auto'"):
        chosen_attention("documents", GPU)
