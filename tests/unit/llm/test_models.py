from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from forebay.data.loader.batch import Batch
from forebay.errors import InvalidOption
from forebay.llm.adapters import Lora
from forebay.llm.loss import token_loss
from forebay.llm.models import ModelSpec, check_model, check_weights, read_config, recomputes_activations
from forebay.llm.recipe import Recipe
from forebay.llm.source.prepared_tokens import PreparedTokens
from forebay.llm.tokens import TokenCounts


def tokens_of(vocab_size: int = 300, seq_len: int = 256, **facts: Any) -> PreparedTokens:
    prepared: Any = None
    return PreparedTokens(
        prepared=prepared,
        seq_len=seq_len,
        vocab_size=vocab_size,
        counts=TokenCounts(),
        trained_tokenizer=None,
        **{"packing": "bfd", **facts},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    model: Any = ModelSpec(name="tiny", vocab_size=300).build()
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_tiny_model_is_seeded_and_trains_in_float32() -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(1)
        models.append(ModelSpec(name="tiny", vocab_size=300).build())
    first, second = (each.state_dict() for each in models)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert {each.dtype for each in first.values()} == {torch.float32}
    assert models[0].training and not models[0].is_gradient_checkpointing


@pytest.mark.parametrize(
    ("wanted", "has_gpu", "does"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_activations_are_computed_again_on_gpus_if_nothing_is_said(
    wanted: bool | None, has_gpu: bool, does: bool
) -> None:
    assert recomputes_activations(wanted, torch.device("cuda" if has_gpu else "cpu")) is does


def test_folder_is_loaded_without_its_evaluation_mode(folder: Path) -> None:
    check_model(str(folder), tokens_of())
    torch.manual_seed(3)
    made = ModelSpec(name="tiny", vocab_size=300).build()
    loaded = ModelSpec(name=str(folder), vocab_size=300, gradient_checkpointing=True).build()
    assert loaded.training and loaded.is_gradient_checkpointing
    for name, values in made.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], values)


def test_model_must_have_an_entry_for_each_token_and_a_position_for_each_of_a_row(folder: Path) -> None:
    with pytest.raises(InvalidOption, match="the tokenizer has 301 entries, and the model .* for 300"):
        check_model(str(folder), tokens_of(vocab_size=301))
    with pytest.raises(InvalidOption, match="seq_len=8192, and the model .* has 4096 positions"):
        check_model(str(folder), tokens_of(seq_len=8192))
    with pytest.raises(InvalidOption, match="seq_len=8192, and the model tiny"):
        check_model("tiny", tokens_of(seq_len=8192))


def test_positions_by_another_name_are_found(folder: Path) -> None:
    sizes = {"model_type": "gpt2", "vocab_size": 300, "n_positions": 128}
    (folder / "config.json").write_text(json.dumps(sizes))
    check_model(str(folder), tokens_of(seq_len=128))
    with pytest.raises(InvalidOption, match="seq_len=256, and the model .* has 128 positions"):
        check_model(str(folder), tokens_of())


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "lfm2", "layer_types": ["conv"], "num_hidden_layers": 1}, "layers of the kind 'conv'"),
        ({"model_type": "mamba", "num_hidden_layers": 1}, "layers of the kind 'linear_attention'"),
        ({"model_type": "recurrent_gemma"}, "a state"),
        ({"model_type": "bloom"}, "a mask of its own"),
    ],
)
def test_models_whose_documents_would_see_each_other(folder: Path, config: dict[str, Any], why: str) -> None:
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 300}))
    with pytest.raises(InvalidOption, match=rf"has {why}, through which documents .* Set packing='none'"):
        check_model(str(folder), tokens_of())
    check_model(str(folder), tokens_of(packing="none"))
    with pytest.raises(InvalidOption, match="through which the answers to compare in one row .* another architecture"):
        check_model(str(folder), tokens_of(packing="none", has_pairs=True), answers="pairs")


def test_layers_of_attention_alone_keep_documents_apart(folder: Path) -> None:
    config = {"model_type": "granitemoehybrid", "layer_types": ["attention"], "num_hidden_layers": 1, "vocab_size": 300}
    (folder / "config.json").write_text(json.dumps(config))
    check_model(str(folder), tokens_of())


def test_weights_that_are_quantized_already(folder: Path) -> None:
    config = folder / "config.json"
    quantized_by = {"quantization_config": {"quant_method": "mxfp4"}}
    config.write_text(json.dumps(json.loads(config.read_text()) | quantized_by))
    with pytest.raises(InvalidOption, match=r"quantized already \(mxfp4\), and training needs plain ones"):
        check_model(str(folder), tokens_of())


def test_folders_that_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidOption, match=r"is not the folder of a model: it holds no files. It needs config.json"):
        read_config(str(tmp_path / "empty"))
    weights = folder / "model.safetensors"
    weights.rename(folder / "pytorch_model.bin")
    with pytest.raises(InvalidOption, match=r"pytorch_model.bin is a pickle, which may run any code"):
        read_config(str(folder))
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-00001-of-00002.safetensors").touch()
    with pytest.raises(InvalidOption, match="lacks model-00002-of-00002.safetensors of its weights"):
        read_config(str(folder))
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"auto_map": {"AutoModel": "code.Model"}}))
    with pytest.raises(InvalidOption, match="brings code of its own"):
        read_config(str(folder))


@pytest.mark.parametrize(
    "facts",
    [
        {"_attn_implementation": "org/kernel"},
        {"attn_implementation": {"": "sdpa", "text_config": "org/kernel@main"}},
        {"text_config": {"_attn_implementation": "org/kernel:attend"}},
    ],
)
def test_a_configuration_chooses_no_code_of_the_hub(folder: Path, facts: dict[str, Any]) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | facts))
    with pytest.raises(InvalidOption, match=r"names code of the Hub for its attention \('org/kernel"):
        read_config(str(folder))


def test_a_configuration_may_name_an_attention_of_transformers(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"_attn_implementation": "flash_attention_2"}))
    assert read_config(str(folder))["_attn_implementation"] == "flash_attention_2"


def test_an_adapter_beside_a_model_is_not_added_to_its_weights(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(InvalidOption, match="holds an adapter beside the model"):
        read_config(str(folder))


@pytest.mark.parametrize("name", ["model.layers.0.mlp.down_proj.weight", "lm_head.weight"])
def test_a_weight_that_is_missing_is_named_before_and_at_the_load(folder: Path, name: str) -> None:
    assert check_weights(ModelSpec(name=str(folder), vocab_size=300)) is not None
    tensors = load_file(folder / "model.safetensors")
    save_file({each: tensors[each] for each in tensors if each != name}, folder / "model.safetensors", {"format": "pt"})
    spec = ModelSpec(name=str(folder), vocab_size=300)
    for check in (check_weights, ModelSpec.build):
        with pytest.raises(InvalidOption, match=f"lacks {name}: random numbers would be trained"):
            check(spec)


def test_weights_of_another_shape_or_cut_are_named(folder: Path) -> None:
    spec, weights = ModelSpec(name=str(folder), vocab_size=300), folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1000])
    with pytest.raises(InvalidOption, match=r"model.safetensors has [\d,]+ bytes, and its header says .* it was cut"):
        check_weights(spec)
    weights.write_bytes(whole[:100])
    with pytest.raises(InvalidOption, match="is not a file of safetensors, or was cut"):
        check_weights(spec)
    weights.write_bytes(whole)
    tensors = load_file(weights)
    save_file(tensors | {"lm_head.weight": torch.zeros(7, 64)}, weights, {"format": "pt"})
    with pytest.raises(InvalidOption, match="lm_head.weight"):
        check_weights(spec)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{ not json", "config.json of .* is not JSON"),
        ("[]", "config.json of .* is not a JSON object"),
        ('{"model_type": "martian"}', "cannot be loaded .*martian"),
        ('{"model_type": "bert"}', "cannot be loaded|lacks"),
    ],
)
def test_a_config_that_is_no_model_is_refused(folder: Path, text: str, found: str) -> None:
    (folder / "config.json").write_text(text)

    def check() -> None:
        read_config(str(folder))
        check_weights(ModelSpec(name=str(folder), vocab_size=300))

    with pytest.raises(InvalidOption, match=found):
        check()


def test_damaged_weights_are_named(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(InvalidOption, match="cannot be loaded"):
        ModelSpec(name=str(folder), vocab_size=300).build()


def test_unknown_attention_is_refused() -> None:
    with pytest.raises(InvalidOption, match="attn='flash' is unknown. Choose one of 'auto', 'documents', 'sdpa'"):
        ModelSpec(name="tiny", vocab_size=300, attn="flash")  # type: ignore[arg-type]


@pytest.mark.variation
def test_compiled_layers_are_compiled_for_each_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows, lengths, gradients and autocast: a Llama has nine."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counter, compile_layer = CompileCounterWithBackend("eager"), nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda layer: compile_layer(layer, backend=counter))
    torch._dynamo.reset()
    model = ModelSpec(name="tiny", vocab_size=64, compile=True).build()
    counts = []
    for is_cast in (False, True):
        for is_trained in (True, False):
            for rows, length in ((2, 32), (2, 20), (1, 32), (1, 25), (3, 40)):
                with torch.autocast("cpu", torch.bfloat16, is_cast), torch.set_grad_enabled(is_trained):
                    model.train(is_trained)(torch.zeros(rows, length, dtype=torch.int64))
            counts.append(counter.frame_count)
    assert counts[0] < counts[1] < counts[2] < counts[3]
    assert counts[3] > 8


def test_adapter_trains_a_little_beside_a_frozen_model() -> None:
    model = ModelSpec(name="tiny", vocab_size=300).build()
    total = sum(each.numel() for each in model.parameters())
    adapted = Lora(r=2).add_to(model)
    trained = {name: each for name, each in adapted.named_parameters() if each.requires_grad}
    assert trained and all("lora_" in name for name in trained)
    assert sum(each.numel() for each in trained.values()) < total / 10
    assert not any("lm_head" in name for name in trained)


@pytest.mark.parametrize(
    ("adapter", "quantization"),
    [(None, None), (Lora(r=2), None), pytest.param(Lora(r=2), "nf4", marks=pytest.mark.variation("bitsandbytes"))],
    ids=["full", "lora", "qlora"],
)
def test_activations_that_are_computed_again_change_no_gradient(adapter: Lora | None, quantization: Any) -> None:
    row = torch.randint(5, 300, (2, 64), generator=torch.Generator().manual_seed(0), dtype=torch.int32) | 1 << 25
    row[:, [0, 20]] |= 1 << 24
    found = []
    for again in (False, True):
        torch.manual_seed(1)
        spec = ModelSpec(name="tiny", vocab_size=300, gradient_checkpointing=again, quantization=quantization)
        model = Recipe(model=spec, adapter=adapter).build_model("cpu")
        assert model.is_gradient_checkpointing is again
        token_loss(model, Batch({"tokens": row}, num_rows=2, size=2)).backward()
        found.append({name: each.grad for name, each in model.named_parameters() if each.requires_grad})
    kept, made = found
    assert kept.keys() == made.keys() and all(torch.equal(kept[name], made[name]) for name in kept)
    assert any(bool(each.any()) for each in kept.values())


def test_adapters_that_cannot_work() -> None:
    model = ModelSpec(name="tiny", vocab_size=300).build()
    with pytest.raises(InvalidOption, match=r"'query' matches no layer .* linear layers are .*q_proj"):
        Lora(targets="query").add_to(model)
    with pytest.raises(InvalidOption, match=r"lora_targets=q_proj,v_prj: 'v_prj' matches no .*Did you mean 'v_proj'"):
        Lora(targets="q_proj,v_prj").add_to(model)
    with pytest.raises(InvalidOption, match="has an empty name"):
        Lora(targets="q_proj,")
    with pytest.raises(InvalidOption, match="lora_r=0"):
        Lora(r=0)
    with pytest.raises(InvalidOption, match="lora_dropout=1"):
        Lora(dropout=1)
