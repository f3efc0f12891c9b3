"""Architectures whose rows ranks may compute together, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from forebay import llm
from forebay.errors import InvalidOption
from forebay.llm.context_parallel import EXACT, check_exchangeable
from forebay.llm.cost.memory import MemoryPlan, estimate_memory
from forebay.llm.cost.memory_check import smallest_change
from forebay.testing.data.mixtures import MIXTURES

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "max_position_embeddings": 64,
}  # fmt: skip
CONVOLUTION = {"layer_types": ["conv", "full_attention"]}
TOKENS, CUT = 24, 12
POSITIONS = torch.tensor([[*range(7), *range(TOKENS - 7)]])


def made(kind: str, **options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **SIZES | dict(MIXTURES.get(kind, {})) | options)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")


def values_alone(_module: Any, query: Any, _key: Any, value: Any, _mask: Any, **_: Any) -> tuple[Any, None]:
    """Attention of each token to itself."""
    return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).transpose(1, 2), None


def meets_in_attention_alone(model: Any) -> bool:
    transformers.AttentionInterface.register("values_alone", values_alone)
    model.set_attn_implementation("values_alone")
    ids = torch.arange(TOKENS)[None]
    with torch.no_grad():
        whole = model(input_ids=ids, position_ids=POSITIONS, use_cache=False).logits
        part = model(input_ids=ids[:, CUT:], position_ids=POSITIONS[:, CUT:], use_cache=False).logits
    return torch.allclose(whole[:, CUT:], part, atol=1e-6)


@pytest.mark.parametrize("kind", sorted(EXACT))
def test_tokens_of_known_architectures_meet_in_attention_alone(kind: str) -> None:
    model = made(kind)
    check_exchangeable(model, 2)
    assert meets_in_attention_alone(model)


def test_others_are_refused_by_name() -> None:
    with_convolutions = made("lfm2", **CONVOLUTION)
    with pytest.raises(InvalidOption, match="not known to be exact for model_type='lfm2': layers with a state"):
        check_exchangeable(with_convolutions, 2)
    assert not meets_in_attention_alone(with_convolutions)
    with pytest.raises(InvalidOption, match="context_parallel=3 cannot divide 4 attention heads"):
        check_exchangeable(made("llama"), 3)
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}
    with pytest.raises(InvalidOption, match="rope_type='dynamic'.* depends on the longest position"):
        check_exchangeable(made("llama", rope_parameters=rope), 2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"model": {"attn": "eager"}}, "attn='eager'"),
        ({"model": {"compile": True}}, "compile=True"),
        ({"model": {"head": "reward"}}, "the head 'reward'"),
        ({"router_aux_loss_coef": 0.1}, "router_aux_loss_coef=0.1"),
        ({"context_parallel": 0}, "context_parallel=0"),
    ],
)
def test_recipes_that_cannot_work(options: dict[str, Any], text: str) -> None:
    spec = llm.ModelSpec(name="tiny", vocab_size=50, **options.pop("model", {}))
    with pytest.raises(InvalidOption, match=text):
        llm.Recipe(**{"model": spec, "context_parallel": 2} | options)


def test_long_rows_need_memory_for_a_part_of_them() -> None:
    whole = MemoryPlan(model="Llama-3.2-1B", workers=4, seq_len=32_768, strategy="fsdp2", global_batch=4)
    assert not whole.accumulates and replace(whole, context_parallel=4).accumulates
    one, four = (estimate_memory(replace(whole, context_parallel=each)).device["activations"] for each in (1, 4))
    assert 2 < one / four < 4
    adapted = replace(whole, finetuning="qlora")
    limit = int(estimate_memory(replace(adapted, context_parallel=2)).total / 0.9) + 1
    assert smallest_change(adapted, limit) == {"context_parallel": 2}
    with pytest.raises(InvalidOption, match="needs as many workers, and there are 4"):
        replace(whole, context_parallel=8)
