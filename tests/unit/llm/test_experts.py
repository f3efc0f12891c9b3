"""Mixtures of experts beside the forms of transformers, in 32 and in 4 bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from forebay.errors import InvalidOption
from forebay.llm.adapters import Lora
from forebay.llm.experts import expert_weights, group_experts, has_experts, pack, packed_shapes, unpacked
from forebay.llm.models import ModelSpec, check_weights
from forebay.llm.quantization import FrozenWeights, _prepared, dequantized
from forebay.testing.data.mixtures import MIXTURES, mixture

VARIATION = pytest.mark.variation("another architecture")
KINDS = ["mixtral", *(pytest.param(each, marks=VARIATION) for each in MIXTURES if each != "mixtral")]
IDS = torch.arange(4, 44)[None]


def build(kind: str, **options: Any) -> Any:
    torch.manual_seed(3)
    made = transformers.AutoModelForCausalLM.from_config(mixture(kind, **options), attn_implementation="eager")
    for each in made.parameters():
        if each.dim() > 1:
            torch.nn.init.normal_(each, std=0.1)
    return made


def loss_and_gradient(model: Any) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss = model.train()(input_ids=IDS, labels=IDS).loss
    loss.backward()
    return loss.item(), {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("kind", KINDS)
def test_grouped_experts_compute_what_transformers_does(kind: str) -> None:
    model = build(kind)
    assert has_experts(model)
    model.set_experts_implementation("eager")
    loss, gradient = loss_and_gradient(model)
    group_experts(model)
    grouped, found = loss_and_gradient(model)
    assert grouped == pytest.approx(loss, rel=1e-6)
    assert found.keys() == gradient.keys()
    for name, each in found.items():
        assert torch.allclose(each, gradient[name], rtol=1e-4, atol=1e-6), name


def test_autocast_reaches_the_experts() -> None:
    model = build("mixtral")
    group_experts(model)
    experts = next(module for _, module, _ in expert_weights(model))
    seen = []
    experts.register_forward_hook(lambda *given: seen.append(given[2].dtype))
    loss, _ = loss_and_gradient(model)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, gradient = loss_and_gradient(model)
    assert seen == [torch.float32, torch.bfloat16]
    assert rounded == pytest.approx(loss, rel=2e-2) and rounded != loss
    assert {each.dtype for each in gradient.values()} == {torch.float32}


def test_experts_of_a_dense_model_and_convolutions() -> None:
    assert not has_experts(torch.nn.Conv1d(4, 4, 3))
    assert not has_experts(transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**_small())))


def _small() -> dict[str, int]:
    return {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 9,
    }


@pytest.mark.parametrize("kind", KINDS)
def test_packed_experts_are_frozen_and_compute_their_rounded_weights(kind: str) -> None:
    pytest.importorskip("bitsandbytes")
    model, rounded = build(kind), build(kind)
    for _, module, own in list(expert_weights(rounded)):
        weight = getattr(module, own)
        weight.data = dequantized(weight.data.reshape(-1)).view(weight.shape)
    for each in (_prepared(model), rounded):
        group_experts(each)
    for _, module, own in expert_weights(model):
        assert getattr(module, own).dtype == torch.uint8 and not getattr(module, own).requires_grad
        assert unpacked(module, own, torch.float32).shape == packed_shapes(module)[own]
    with torch.no_grad():
        assert torch.equal(model(input_ids=IDS).logits, rounded(input_ids=IDS).logits)
    frozen = FrozenWeights(model)
    frozen.watch(model)
    _, gradient = loss_and_gradient(model)
    state = model.state_dict()
    assert not [each for each in (*gradient, *state) if each.endswith(("experts.gate_up_proj", "experts.down_proj"))]
    model.load_state_dict(state)
    begin = frozen.state_dict()
    module = next(each for _, each, _ in expert_weights(model))
    module.down_proj.data[0] ^= 1
    assert FrozenWeights(model).state_dict() != begin


def test_adapter_leaves_experts_and_routers_alone_unless_they_are_named() -> None:
    usual = Lora(r=2).targets_in(build("mixtral"))
    assert (set(usual.layers), usual.weights) == ({"q_proj", "k_proj", "v_proj", "o_proj"}, ())
    named = Lora(r=2, targets="all-linear,experts,gate").targets_in(build("mixtral"))
    assert set(named.layers) == set(usual.layers)
    assert set(named.weights) == {"experts.gate_up_proj", "experts.down_proj", "gate.weight"}
    # peft takes these names for the experts, also where they are shared experts and dense layers.
    shared = build("deepseek_v3")
    assert not {"gate_proj", "up_proj", "down_proj"} & set(Lora(r=2).targets_in(shared).layers)
    with pytest.raises(InvalidOption, match=r"peft takes 'gate_proj' of .* for the experts.*'gate_proj.weight'"):
        Lora(r=2, targets="gate_proj").targets_in(shared)
    assert Lora(r=2, targets="shared_experts.gate_proj.weight").targets_in(shared).weights
    adapted = Lora(r=2, targets="shared_experts.gate_proj.weight,experts").add_to(shared)
    loss, gradient = loss_and_gradient(adapted)
    assert loss > 0 and all(".lora_" in each for each in gradient)


def test_targets_that_cannot_work_together() -> None:
    model = build("mixtral")
    with pytest.raises(InvalidOption, match="lora_dropout=0.1: peft has no dropout for 'experts.gate_up_proj'"):
        Lora(r=2, dropout=0.1, targets="experts").add_to(model)
    with pytest.raises(InvalidOption, match="'experts.gate_up_proj' is held in 4 bits"):
        Lora(r=2, targets="experts").targets_in(model, is_quantized=True)
    assert Lora(r=2).targets_in(model, is_quantized=True).layers
    with pytest.raises(InvalidOption, match="'expert' matches no layer of the model"):
        Lora(r=2, targets="expert").add_to(model)


def test_scales_move_with_their_weights() -> None:
    pytest.importorskip("bitsandbytes")
    model = build("mixtral")
    _, module, own = next(expert_weights(model))
    pack(module, own, "nf4", getattr(module, own).detach())
    assert f"{own}_scales" in dict(module.named_buffers()) and f"{own}_scales" not in module.state_dict()


def test_a_mixture_without_sdpa_is_built_with_the_attention_that_it_has(tmp_path: Path) -> None:
    build("gpt_oss").save_pretrained(tmp_path)
    spec = ModelSpec(name=str(tmp_path), vocab_size=128)
    built: Any = spec.build()
    assert built.config._attn_implementation == "eager"
    check_weights(spec)
    for attn in ("sdpa", "documents"):
        with pytest.raises(InvalidOption, match="scaled_dot_product_attention"):
            check_weights(replace(spec, attn=attn))
