"""Adapters beside 4-bit weights, which never change."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from forebay.errors import BadJob, InvalidOption
from forebay.llm.adapters import Lora
from forebay.llm.experts import unpacked
from forebay.llm.models import ModelSpec
from forebay.llm.quantization import FrozenWeights, dequantized, quantized_layers
from forebay.llm.recipe import Recipe
from forebay.testing.data.mixtures import mixture


def build(seed: int = 1) -> Any:
    torch.manual_seed(seed)
    return Recipe(model=ModelSpec(name="tiny", vocab_size=300, quantization="nf4"), adapter=Lora(r=2)).build_model(
        "cpu"
    )


def test_weights_stay_in_training_and_evaluation() -> None:
    model = build()
    layers = dict(quantized_layers(model))
    assert len(layers) == 14 and not any("lm_head" in name for name in layers)
    assert {each.weight.dtype for each in layers.values()} == {torch.uint8}
    frozen = FrozenWeights(model)
    frozen.watch(model)
    begin = frozen.state_dict()
    ids = torch.arange(4, 40)[None]
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
    losses = []
    for _ in range(2):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        after = model(input_ids=ids, labels=ids).loss.item()
        assert model.train()(input_ids=ids, labels=ids).loss.item() == after < losses[1] < losses[0]
    assert frozen.state_dict() == begin
    # The values are those that bitsandbytes computes with, and none of them is in a state.
    torch.manual_seed(1)
    plain: Any = ModelSpec(name="tiny", vocab_size=300).build()
    name, layer = next(iter(layers.items()))
    inputs = torch.eye(64)
    expected = dequantized(plain.model.layers[0].self_attn.q_proj.weight)
    assert "layers.0.self_attn.q_proj" in name
    assert torch.equal(layer(inputs).T, expected)
    state = model.state_dict()
    assert not [each for each in state if "base_layer.weight" in each]
    model.load_state_dict(state)
    layer.weight.data[0] ^= 1
    with pytest.raises(BadJob, match="frozen 4-bit weights of the model have changed"):
        frozen.state_dict()


def test_a_mixture_is_never_whole_while_it_is_read(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = mixture("mixtral", num_hidden_layers=8, hidden_size=256, intermediate_size=512)
    plain = transformers.AutoModelForCausalLM.from_config(config)
    plain.save_pretrained(tmp_path)
    largest = max(each.nbytes for each in plain.parameters())
    experts = plain.model.layers[7].mlp.experts.gate_up_proj
    spec = ModelSpec(name=str(tmp_path), vocab_size=128, quantization="nf4")
    found: list[Any] = []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        found.append(spec.build())
    events = [each for each in profile.profiler.kineto_results.events() if each.name() == "[memory]"]
    # The file is mapped, and counts as if it were read.
    mapped = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    peak = np.cumsum([each.nbytes() for each in sorted(events, key=lambda each: each.start_ns())]).max() - mapped
    held = sum(each.nbytes for each in (*found[0].parameters(), *found[0].buffers()))
    assert peak < held + 4 * largest < 0.7 * sum(each.nbytes for each in plain.parameters())
    own = unpacked(found[0].model.layers[7].mlp.experts, "gate_up_proj", torch.float32)
    assert torch.equal(own, dequantized(experts.detach().reshape(-1)).view(experts.shape))
    assert not own.requires_grad


def test_run_continues_with_the_same_base_only() -> None:
    saved = FrozenWeights(build()).state_dict()
    FrozenWeights(build()).load_state_dict(saved)
    with pytest.raises(ValueError, match="Give the base model that the run was started with"):
        FrozenWeights(build(seed=2)).load_state_dict(saved)


def test_what_cannot_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidOption, match=r"without an adapter trains nothing.*finetuning=qlora"):
        Recipe(model=ModelSpec(name="tiny", vocab_size=300, quantization="nf4"))
    with pytest.raises(InvalidOption, match="quantization='int8' is unknown"):
        ModelSpec(name="tiny", vocab_size=300, quantization="int8")  # type: ignore[arg-type]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        InvalidOption, match=r"package bitsandbytes, which is not installed. Run: pip install 'forebay\[qlora\]'"
    ):
        ModelSpec(name="tiny", vocab_size=300, quantization="nf4")
