"""FLOPs beside published runs, the usual formula, and counts of each document."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from forebay.errors import InvalidOption
from forebay.llm.adapters import Lora
from forebay.llm.cost.flops import TokenFlops, _counted, count_flops, one_document
from forebay.llm.cost.known_models import KNOWN_MODELS, model_config
from forebay.llm.cost.skeleton import decoder_layers, num_layers, num_parameters, skeleton
from forebay.llm.experts import has_experts
from forebay.testing.data.mixtures import mixture

H100 = 989e12
VARIATION = pytest.mark.variation("another model of the same count")


@cache
def flops_of(name: str, rank: int | None = None) -> TokenFlops:
    return count_flops(config_of(name), None if rank is None else Lora(r=rank))


@cache
def config_of(name: str) -> Any:
    if name == "MPT-7B":
        return transformers.MptConfig(d_model=4096, n_heads=32, n_layers=32, vocab_size=50_432, max_seq_len=2048)
    return model_config(name)


def formula_flops(config: Any) -> TokenFlops:
    """Full training by the usual formula: `6 N + 12 L H Q T` per token (PaLM, appendix B, and torchtitan).

    N is the number of parameters, without the input embedding unless it is shared with the output.
    """
    model: Any = skeleton(config)
    is_tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    counted = num_parameters(model) - (0 if is_tied else model.get_input_embeddings().weight.numel())
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return TokenFlops(linear=6.0 * counted, squared=12.0 * num_layers(config) * config.num_attention_heads * width)


def small(**options: Any) -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}
    return transformers.LlamaConfig(**(sizes | {"vocab_size": 100, "num_key_value_heads": 2} | options))


@pytest.mark.parametrize(
    ("name", "length", "tokens_per_s", "published"),
    [
        # NeMo 24.12 on H100, fp8: TFLOP/s per GPU.
        ("Llama-2-7B", 4096, 16_934, 780e12),
        ("Llama-2-70B", 4096, 1_728, 768e12),
        # MosaicML's llm-foundry on H100, bf16: MFU.
        ("MPT-7B", 2048, 10_643, 0.464 * H100),
    ],
)
def test_published_runs_are_reproduced(name: str, length: int, tokens_per_s: float, published: float) -> None:
    assert flops_of(name).of(1, length) * tokens_per_s == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(("tokens_per_s", "published"), [(5_762, 0.337), (6_667, 0.390)])
def test_published_runs_of_torchtitan_are_reproduced(tokens_per_s: float, published: float) -> None:
    """Llama-3-8B on H100 at 8192 tokens, which the page rounds to 33 % and 39 %."""
    assert flops_of("Llama-3-8B").of(1, 8192) * tokens_per_s / H100 == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    "name",
    [
        "Llama-2-7B",
        "Llama-3-8B",
        *(pytest.param(each, marks=VARIATION) for each in ("Llama-2-13B", "Llama-3.2-1B", "Mistral-7B", "Qwen2.5-7B")),
    ],
)
def test_count_is_the_usual_formula(name: str) -> None:
    """The formula leaves out products of norms and positions, which the counter does not count either."""
    for length in (256, 4096):
        ratio = flops_of(name).of(1, length) / formula_flops(config_of(name)).of(1, length)
        assert ratio == pytest.approx(1, abs=2e-4)


@pytest.mark.parametrize(
    ("name", "length", "ratio"),
    [
        ("Llama-2-7B", 4096, 0.716),
        pytest.param("Llama-2-13B", 4096, 0.708, marks=VARIATION),
        pytest.param("Llama-2-70B", 4096, 0.693, marks=VARIATION),
        pytest.param("Llama-3-8B", 8192, 0.744, marks=VARIATION),
    ],
)
def test_lora_costs_less_than_full_training(name: str, length: int, ratio: float) -> None:
    """Weights that are frozen have no gradient: about 4 N instead of 6 N, but attention costs the same."""
    adapted, full = (flops_of(name, rank).of(1, length) for rank in (16, None))
    assert adapted / full == pytest.approx(ratio, rel=0.005)
    config = config_of(name)
    by_hand = formula_flops(config)
    adapter = 6 * _lora_parameters(config, 16)
    # The first layer needs no gradient of its input: its query, key and value have one product less.
    expected = by_hand.linear * 4 / 6 + by_hand.squared * length + adapter
    assert adapted == pytest.approx(expected, rel=0.005)


def _lora_parameters(config: Any, rank: int) -> int:
    width, inner = config.hidden_size, config.intermediate_size
    keys = width // config.num_attention_heads * config.num_key_value_heads
    layer = 2 * (width + width) + 2 * (width + keys) + 3 * (width + inner)
    return rank * layer * config.num_hidden_layers


@pytest.mark.parametrize(("name", "ratio"), [("Llama-2-7B", 0.878), ("Llama-2-70B", 0.937)])
def test_packed_rows_cost_less_than_one_document_of_their_length(name: str, ratio: float) -> None:
    flops = flops_of(name)
    assert flops.of(4096, 8 * 512**2) / flops.of(4096, 4096**2) == pytest.approx(ratio, abs=0.001)


@pytest.mark.parametrize("adapter", [pytest.param(None, marks=pytest.mark.variation), Lora(r=2)])
def test_packed_row_is_the_sum_of_counts_of_each_document(adapter: Lora | None) -> None:
    lengths, config = [7, 300, 129], small(num_hidden_layers=2)
    each = sum(_counted(adapter, length, config) for length in lengths)
    assert count_flops(config, adapter).of(sum(lengths), sum(length**2 for length in lengths)) == pytest.approx(
        each, rel=1e-3
    )


@pytest.mark.parametrize("adapter", [None, pytest.param(Lora(r=2), marks=pytest.mark.variation)])
def test_counts_of_two_layers_are_those_of_all(adapter: Lora | None) -> None:
    config = small(num_hidden_layers=5)
    whole = _counted(adapter, 512, config)
    assert count_flops(config, adapter).of(512, 512**2) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("adapter", [None, Lora(r=4)])
def test_output_layer_is_what_the_model_costs_beside_its_layers(adapter: Lora | None) -> None:
    config = small(num_hidden_layers=1)
    model = skeleton(config, adapter)
    with torch.device("meta"):
        inputs = one_document(model, 256)
    layers = model if adapter is None else model.get_base_model()
    with FlopCounterMode(display=False) as counter:
        layers.model(**inputs, use_cache=False).last_hidden_state.sum().backward()
    whole = _counted(adapter, 256, config)
    assert count_flops(config, adapter).output == (whole - counter.get_total_flops()) / 256


def test_models_of_unequal_layers_are_counted_whole() -> None:
    """The first layer of this model has no experts."""
    config = transformers.Qwen3MoeConfig(
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=100,
        mlp_only_layers=[0],
    )
    assert count_flops(config).of(512, 512**2) == pytest.approx(_counted(None, 512, config), rel=1e-12)


@pytest.mark.variation
def test_experts_count_as_often_as_a_token_uses_them() -> None:
    config = config_of("Mixtral-8x7B")
    layers, width, inner = config.num_hidden_layers, config.hidden_size, config.intermediate_size
    unused = 6 * layers * 3 * width * inner * (config.num_local_experts - config.num_experts_per_tok)
    expected = formula_flops(config).of(1, 4096) - unused
    assert flops_of("Mixtral-8x7B").of(1, 4096) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("kind", ["glm4_moe", *(pytest.param(k, marks=VARIATION) for k in ("gpt_oss", "deepseek_v3"))])
def test_router_and_shared_experts_count_and_idle_experts_do_not(kind: str) -> None:
    few, many = (mixture(kind, num_hidden_layers=4, **{_experts(kind): number}) for number in (4, 16))
    routers = 6 * 64 * (16 - 4) * sum(has_experts(each) for each in decoder_layers(skeleton(few)))
    assert count_flops(many).linear - count_flops(few).linear == pytest.approx(routers)


def _experts(kind: str) -> str:
    return "num_local_experts" if kind == "gpt_oss" else "n_routed_experts"


def test_adapted_experts_cost_what_trained_ones_do() -> None:
    """peft adds the adapter to all of a weight, and needs the gradient of the sum."""
    config = mixture("mixtral")
    usual, adapted = (count_flops(config, Lora(r=2, targets=each)) for each in ("all-linear", "all-linear,experts"))
    assert adapted.linear - usual.linear == pytest.approx(2 * 2 * 2 * 3 * 64 * 128)


def test_names_that_are_no_model() -> None:
    with pytest.raises(InvalidOption, match="'Llama-9' is neither the folder of a model .* nor a known model. Those"):
        model_config("Llama-9")
    assert model_config("llama-2-7b").num_hidden_layers == 32
    assert len(KNOWN_MODELS) >= 10
