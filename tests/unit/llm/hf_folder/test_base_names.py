"""Mixtures of experts, exported as the files of their bases have them, as transformers and peft load them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open

from forebay import llm
from forebay.testing.data.mixtures import MIXTURES, mixture

TrainRun = Callable[..., float]
VARIATION = pytest.mark.variation("another architecture")
KINDS = ["mixtral", *(pytest.param(each, marks=VARIATION) for each in MIXTURES if each != "mixtral")]
IDS = torch.arange(4, 60)[None]


def load(folder: Path) -> Any:
    model, found = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="float32", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(found.values()), found
    return model


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=IDS).logits
    return found


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            found |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return found


def base_of(kind: str, tokens: llm.PreparedTokens, folder: Path, *, is_fused: bool = False) -> Path:
    config = mixture(kind, vocab_size=tokens.vocab_size)
    config.architectures = None
    torch.manual_seed(2)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for each in model.parameters():
        if each.dim() > 1:
            torch.nn.init.normal_(each, std=0.08)
    model.save_pretrained(folder, save_original_format=not is_fused)
    return folder


def trained_logits(model: Any, tmp_path: Path) -> torch.Tensor:
    """Logits of `model` with the state of the newest checkpoint."""
    path = max((tmp_path / "runs").glob("mine/checkpoints/step-*/shard-00000.pt"))
    state = torch.load(path, weights_only=True)["objects"]["model"]
    assert not model.load_state_dict(state, strict=False).unexpected_keys
    return logits(model)


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((found - expected).abs().max() < 1e-4 * expected.abs().max())


@pytest.mark.parametrize("is_fused", [False, pytest.param(True, marks=VARIATION)])
@pytest.mark.parametrize("kind", KINDS)
def test_trained_mixture_has_the_names_and_shapes_of_its_base(
    train_run: TrainRun, tokens: llm.PreparedTokens, tmp_path: Path, kind: str, is_fused: bool
) -> None:
    base = base_of(kind, tokens, tmp_path / "base", is_fused=is_fused)
    train_run(model=str(base), steps=2, model_options={"attn": "eager"})
    llm.export("mine", str(tmp_path / "out"), storage=str(tmp_path / "runs"))
    assert shapes(tmp_path / "out") == shapes(base)
    expected = trained_logits(load(base), tmp_path)
    assert close(logits(load(tmp_path / "out")), expected)
    assert not close(logits(load(base)), expected)


@pytest.mark.parametrize(
    ("kind", "targets"),
    [
        ("mixtral", "all-linear,experts,gate"),
        pytest.param("mixtral", "all-linear", marks=VARIATION),
        pytest.param("qwen3_moe", "q_proj,experts,gate", marks=VARIATION),
        pytest.param("qwen2_moe", "all-linear,experts", marks=VARIATION),
        pytest.param("deepseek_v3", "all-linear", marks=VARIATION),
        pytest.param("deepseek_v3", "experts,gate,shared_experts.up_proj.weight", marks=VARIATION),
        pytest.param("glm4_moe", "all-linear,experts", marks=VARIATION),
        pytest.param("gpt_oss", "all-linear,experts,router", marks=VARIATION),
        pytest.param("granitemoe", "all-linear,experts,router", marks=VARIATION),
    ],
)
def test_adapter_of_a_mixture_loads_alone_and_merged(
    train_run: TrainRun, tokens: llm.PreparedTokens, tmp_path: Path, kind: str, targets: str
) -> None:
    import peft

    base, storage = base_of(kind, tokens, tmp_path / "base"), str(tmp_path / "runs")
    adapter = llm.Lora(r=4, alpha=12, targets=targets)
    train_run(model=str(base), steps=2, adapter=adapter, model_options={"attn": "eager"})
    expected = trained_logits(adapter.add_to(load(base)), tmp_path)
    assert not close(logits(load(base)), expected)
    llm.export("mine", str(tmp_path / "adapter"), storage=storage)
    adapted = peft.PeftModel.from_pretrained(load(base), tmp_path / "adapter")
    assert torch.equal(logits(adapted), expected)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert bool(config["target_parameters"]) == ("experts" in targets)
    llm.export("mine", str(tmp_path / "merged"), storage=storage, merge=True)
    assert shapes(tmp_path / "merged") == shapes(base)
    assert close(logits(load(tmp_path / "merged")), expected)


@pytest.mark.parametrize("kind", [*KINDS[:1], pytest.param("glm4_moe", marks=VARIATION)])
def test_adapter_beside_packed_experts_is_merged_into_what_they_stand_for(
    train_run: TrainRun, tokens: llm.PreparedTokens, tmp_path: Path, kind: str
) -> None:
    pytest.importorskip("bitsandbytes")
    base, storage = base_of(kind, tokens, tmp_path / "base"), str(tmp_path / "runs")
    spec = llm.ModelSpec(name=str(base), vocab_size=tokens.vocab_size, quantization="nf4", attn="eager")
    recipe = llm.Recipe(model=spec, adapter=llm.Lora(r=4, alpha=12))
    options = {"quantization": "nf4", "attn": "eager"}
    train_run(model=str(base), steps=2, adapter=recipe.adapter, model_options=options)
    expected = trained_logits(recipe.build_model("cpu"), tmp_path)
    llm.export("mine", str(tmp_path / "merged"), storage=storage, merge=True)
    assert shapes(tmp_path / "merged") == shapes(base)
    assert close(logits(load(tmp_path / "merged")), expected)
