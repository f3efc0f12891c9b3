"""Exported folders as the transformers and peft libraries load them, beside the run that they come from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch.nn import functional

import forebay as fb
from forebay import llm
from forebay.data.plan.cursor import Cursor
from forebay.errors import CorruptFile, InvalidOption
from forebay.llm.hf_folder import safetensors_files
from forebay.llm.hf_folder.model_origin import TRACKED
from forebay.llm.hf_folder.side_files import end_tokens
from forebay.llm.source.folders import folder_digest
from forebay.storage.filesystem import resolve
from forebay.training.checkpoint.checkpoint import Checkpoint, DirectoryStore
from forebay.training.checkpoint.parts.part import LocalChunk
from forebay.training.checkpoint.parts.table import TABLE, named, table_text
from forebay.training.runs import job_facts
from forebay.world import World

TrainRun = Callable[..., float]


def loss_of(model: Any, tokens: llm.PreparedTokens) -> float:
    """Mean loss over all targets of the prepared rows, by transformers alone."""
    plan = fb.build_plan(tokens.prepared.manifest, shuffle=False, lanes=2)
    total, count = 0.0, 0
    model.eval()
    with fb.Loader(plan, llm.token_rows(), None, global_batch=4, as_numpy=True) as loader, torch.no_grad():
        for batch in loader:
            rows = llm.unpack(torch.from_numpy(np.array(batch["tokens"])))
            logits = model(input_ids=rows.input_ids, position_ids=rows.position_ids, use_cache=False).logits
            labels = rows.labels[:, 1:].flatten()
            each = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels, ignore_index=-100, reduction="none")
            total, count = total + float(each.double().sum()), count + int((labels >= 0).sum())
    return total / count


def load(folder: Path, **options: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **({"dtype": torch.float32} | options))


@pytest.fixture
def base(tokens: llm.PreparedTokens, tmp_path: Path) -> Path:
    """Folder of a model whose output layer is its embedding."""
    config = transformers.LlamaConfig(
        **llm.models.tiny_sizes(tokens.vocab_size) | {"tie_word_embeddings": True, "num_hidden_layers": 1}
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path / "base")
    transformers.GenerationConfig(do_sample=True, top_k=7, eos_token_id=5).save_pretrained(tmp_path / "base")
    torch.manual_seed(2)
    state = transformers.AutoModelForCausalLM.from_config(config).state_dict()
    del state["lm_head.weight"]
    save_file(state, tmp_path / "base" / "model.safetensors", metadata={"format": "pt"})
    return tmp_path / "base"


def test_tiny_model_loads_with_the_loss_and_the_tokenizer_of_its_run(
    train_run: TrainRun, tokens: llm.PreparedTokens, tmp_path: Path
) -> None:
    loss = train_run()
    made = llm.export("mine", str(tmp_path / "out"), storage=str(tmp_path / "runs"))
    assert (made.content, made.dtype, made.step, made.files) == ("model", "fp32", 4, ("model.safetensors",))
    assert loss_of(load(tmp_path / "out"), tokens) == pytest.approx(loss, abs=1e-6)
    own = tokens.tokenizer(llm.tokenizer("tiny"))
    found = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    chat = [{"role": "user", "content": "copy abc"}]
    assert found.apply_chat_template(chat, tokenize=False) == own.apply_chat_template(chat, tokenize=False)
    assert found("reverse xyz").input_ids == own("reverse xyz").input_ids
    assert (found.eos_token, found.pad_token) == (own.eos_token, own.pad_token)
    defaults = load(tmp_path / "out").generation_config
    assert (defaults.eos_token_id, defaults.pad_token_id) == (own.eos_token_id, own.pad_token_id)
    # The seal is there, so the same export has nothing to do.
    before = (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns
    assert not llm.export("mine", str(tmp_path / "out"), storage=str(tmp_path / "runs")).is_new
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns == before


def test_model_of_a_folder_in_several_files_without_its_tied_output(
    train_run: TrainRun, tokens: llm.PreparedTokens, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = train_run(model=str(base))
    monkeypatch.setattr(safetensors_files, "FILE_BYTES", 100_000)
    made = llm.export("mine", str(tmp_path / "out"), storage=str(tmp_path / "runs"), step=2)
    assert made.step == 2
    llm.export("mine", str(tmp_path / "last"), storage=str(tmp_path / "runs"))
    index = json.loads((tmp_path / "last" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    assert "lm_head.weight" not in index["weight_map"]
    assert loss_of(load(tmp_path / "last"), tokens) == pytest.approx(loss, abs=1e-6)
    assert abs(loss_of(load(tmp_path / "out"), tokens) - loss) > 1e-3
    defaults = json.loads((tmp_path / "last" / "generation_config.json").read_text())
    own = tokens.tokenizer(llm.tokenizer("tiny"))
    assert (defaults["top_k"], defaults["eos_token_id"]) == (7, [5, own.eos_token_id])


def test_answer_also_ends_where_the_template_ends_a_turn(tokens: llm.PreparedTokens) -> None:
    found = tokens.tokenizer(llm.tokenizer("tiny"))
    of_turn = found.convert_tokens_to_ids("<|im_end|>")
    assert end_tokens(found) == [of_turn]
    found.eos_token = "<|endoftext|>"
    assert end_tokens(found) == [found.convert_tokens_to_ids("<|endoftext|>"), of_turn]


def test_adapter_alone_and_merged(train_run: TrainRun, tokens: llm.PreparedTokens, base: Path, tmp_path: Path) -> None:
    import peft

    loss = train_run(model=str(base), adapter=llm.Lora(r=4, alpha=12))
    storage = str(tmp_path / "runs")
    made = llm.export("mine", str(tmp_path / "adapter"), storage=storage)
    assert (made.content, made.files) == ("adapter", ("adapter_model.safetensors",))
    assert made.tensors == 2 * 7
    adapted = peft.PeftModel.from_pretrained(load(base), tmp_path / "adapter")
    assert adapted.peft_config["default"].target_modules >= {"q_proj", "down_proj"}
    assert loss_of(adapted, tokens) == pytest.approx(loss, abs=1e-6)
    own = llm.Lora(r=4, alpha=12).add_to(load(base))
    state = torch.load(next((tmp_path / "runs").glob("mine/checkpoints/step-*4/shard-00000.pt")), weights_only=True)
    own.load_state_dict(state["objects"]["model"], strict=False)
    ids = torch.arange(5, 60)[None]
    with torch.no_grad():
        logits = own.eval()(input_ids=ids).logits
        assert torch.equal(adapted.eval()(input_ids=ids).logits, logits)
        llm.export("mine", str(tmp_path / "merged"), storage=storage, merge=True)
        merged = load(tmp_path / "merged").eval()(input_ids=ids).logits
    assert (merged - logits).abs().max() < 1e-3 * logits.abs().max()
    assert loss_of(load(tmp_path / "merged"), tokens) == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize(
    ("is_tied", "options"),
    [
        (True, {"rslora": True, "dora": True}),
        (True, {"modules_to_save": "embed_tokens"}),
        *(
            pytest.param(is_tied, options, marks=pytest.mark.variation)
            for is_tied, options in (
                (True, {"rslora": True}),
                (True, {"dora": True, "modules_to_save": "embed_tokens,norm"}),
                (False, {"dora": True}),
                (False, {"modules_to_save": "embed_tokens,lm_head"}),
                (False, {"modules_to_save": "down_proj", "targets": "q_proj,v_proj", "rslora": True}),
            )
        ),
    ],
    ids=str,
)
def test_kinds_of_adapters_load_in_peft(
    train_run: TrainRun, tokens: llm.PreparedTokens, base: Path, tmp_path: Path, is_tied: bool, options: dict[str, Any]
) -> None:
    import peft

    if not is_tied:
        model = load(base)
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone() * 0.5)
        model.save_pretrained(base := tmp_path / "untied")
    loss = train_run(model=str(base), adapter=llm.Lora(r=4, alpha=12, **options))
    storage = str(tmp_path / "runs")
    llm.export("mine", str(tmp_path / "adapter"), storage=storage)
    adapted = peft.PeftModel.from_pretrained(load(base), tmp_path / "adapter")
    assert loss_of(adapted, tokens) == pytest.approx(loss, abs=1e-6)
    llm.export("mine", str(tmp_path / "merged"), storage=storage, merge=True)
    merged, found = load(tmp_path / "merged", output_loading_info=True)
    assert not found["missing_keys"] and not found["unexpected_keys"]
    assert loss_of(merged, tokens) == pytest.approx(loss, abs=1e-5)


def test_tied_output_that_config_json_does_not_name(
    train_run: TrainRun, tokens: llm.PreparedTokens, tmp_path: Path
) -> None:
    import peft

    sizes = llm.models.tiny_sizes(tokens.vocab_size) | {"num_hidden_layers": 1, "head_dim": 16}
    torch.manual_seed(2)
    config = transformers.GemmaConfig(**sizes | {"tie_word_embeddings": True})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "base")
    facts = json.loads((tmp_path / "base" / "config.json").read_text())
    # Gemma's own files have none: it is the default of the architecture.
    del facts["tie_word_embeddings"]
    (tmp_path / "base" / "config.json").write_text(json.dumps(facts))
    loss = train_run(model=str(tmp_path / "base"), adapter=llm.Lora(r=4, modules_to_save="embed_tokens"))
    llm.export("mine", str(tmp_path / "adapter"), storage=str(tmp_path / "runs"))
    adapted = peft.PeftModel.from_pretrained(load(tmp_path / "base"), tmp_path / "adapter")
    assert loss_of(adapted, tokens) == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize("dora", [False, pytest.param(True, marks=pytest.mark.variation)])
def test_layers_with_the_inputs_first_are_merged(
    train_run: TrainRun, tokens: llm.PreparedTokens, tmp_path: Path, dora: bool
) -> None:
    sizes = {"n_positions": 128, "n_embd": 32, "n_layer": 1, "n_head": 2, "initializer_range": 0.2}
    still = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    torch.manual_seed(2)
    config = transformers.GPT2Config(vocab_size=tokens.vocab_size, **sizes, **still)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "base")
    loss = train_run(model=str(tmp_path / "base"), adapter=llm.Lora(r=4, dora=dora))
    llm.export("mine", str(tmp_path / "merged"), storage=str(tmp_path / "runs"), merge=True)
    assert loss_of(load(tmp_path / "merged"), tokens) == pytest.approx(loss, abs=1e-5)


def test_a_tied_output_in_the_files_of_the_base_is_merged_with_its_embedding(
    train_run: TrainRun, tokens: llm.PreparedTokens, base: Path, tmp_path: Path
) -> None:
    state = {name: each.clone() for name, each in load(base).state_dict().items()}
    assert "lm_head.weight" in state
    save_file(state, base / "model.safetensors", metadata={"format": "pt"})
    loss = train_run(model=str(base), adapter=llm.Lora(r=4, modules_to_save="embed_tokens"))
    llm.export("mine", str(tmp_path / "merged"), storage=str(tmp_path / "runs"), merge=True)
    assert loss_of(load(tmp_path / "merged"), tokens) == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize("adapter", [None, pytest.param(llm.Lora(r=4), marks=pytest.mark.variation)])
def test_an_output_that_the_base_ties_in_name_only_is_exported(
    train_run: TrainRun, tokens: llm.PreparedTokens, base: Path, tmp_path: Path, adapter: llm.Lora | None
) -> None:
    state = {name: each.clone() for name, each in load(base).state_dict().items()}
    state["lm_head.weight"] = state["lm_head.weight"].flip(0)
    save_file(state, base / "model.safetensors", metadata={"format": "pt"})
    loss = train_run(model=str(base), adapter=adapter)
    llm.export("mine", str(tmp_path / "whole"), storage=str(tmp_path / "runs"), merge=adapter is not None)
    assert loss_of(load(tmp_path / "whole"), tokens) == pytest.approx(loss, abs=1e-5)
    # Other libraries tie what config.json says.
    assert json.loads((tmp_path / "whole" / "config.json").read_text())["tie_word_embeddings"] is False


def test_other_files_in_the_folder_of_the_base_are_not_merged(
    train_run: TrainRun, tokens: llm.PreparedTokens, base: Path, tmp_path: Path
) -> None:
    state = {name: each.clone() for name, each in load(base).state_dict().items() if name != "lm_head.weight"}
    save_file({f"old.{name}": each for name, each in state.items()}, base / "consolidated.safetensors")
    save_file(state, base / "model-copy.safetensors")
    loss = train_run(model=str(base), adapter=llm.Lora(r=4))
    llm.export("mine", str(tmp_path / "merged"), storage=str(tmp_path / "runs"), merge=True)
    merged, found = load(tmp_path / "merged", output_loading_info=True)
    assert not found["missing_keys"] and not found["unexpected_keys"]
    assert loss_of(merged, tokens) == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"modules_to_save": "embed"}, "'embed' matches no layer of the model"),
        ({"modules_to_save": "lm_head"}, "the output layer of this model is its embedding"),
        ({"modules_to_save": "q_proj", "targets": "q_proj"}, "modules_to_save and lora_targets both name 'q_proj'"),
        ({"modules_to_save": "q_proj"}, "modules_to_save and lora_targets both train 'q_proj'"),
        ({"targets": "q_proj,embed_tokens"}, "lora_targets=q_proj,embed_tokens: 'embed_tokens' is no linear layer"),
        ({"modules_to_save": "norm,"}, "has an empty name"),
    ],
)
def test_layers_that_cannot_be_trained(base: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        llm.Lora(r=4, **options).add_to(load(base))


@pytest.mark.variation
def test_adapter_of_the_tiny_model_is_merged_into_the_weights_of_its_seed(
    train_run: TrainRun, tokens: llm.PreparedTokens, tmp_path: Path
) -> None:
    loss = train_run(adapter=llm.Lora(r=4))
    storage = str(tmp_path / "runs")
    with pytest.raises(InvalidOption, match="belongs to the model 'tiny', which is in no folder .* --merge"):
        llm.export("mine", str(tmp_path / "out"), storage=storage)
    assert llm.export("mine", str(tmp_path / "out"), storage=storage, merge=True).content == "merged model"
    assert loss_of(load(tmp_path / "out"), tokens) == pytest.approx(loss, abs=1e-5)


def save_in_parts(state: dict[str, Any], folder: Path | str, step: int = 3) -> None:
    """Save a checkpoint whose model lies in two parts, as two ranks write it."""
    store = DirectoryStore(folder)
    receipts, half = [], {}
    for number in (1, 2):
        chunks = {}
        for name, values in state["objects"]["model"].items():
            cut = len(values) // 2
            begin, stop = ((0, cut), (cut, len(values)))[number - 1]
            chunks[f"model.{name}"] = LocalChunk(
                shape=tuple(values.shape), offsets=(begin,) + (0,) * (values.dim() - 1), values=values[begin:stop]
            )
            half[name] = named(f"model.{name}")
        receipts.append(store.save_part(step, number, chunks))
    head = {"objects": {**state["objects"], "model": half}, TABLE: table_text(receipts)}
    cursor = Cursor(plan_id="9c02", epoch=1, position=10, global_batch=10)
    store.save(Checkpoint(step=step, cursor=cursor, world=World(rank=0, size=2), shards={0: head}), receipts)


@pytest.fixture
def in_parts(tokens: llm.PreparedTokens, tmp_path: Path) -> dict[str, torch.Tensor]:
    """State of a model that the run `parts` holds in two parts."""
    torch.manual_seed(4)
    spec = llm.ModelSpec(name="tiny", vocab_size=tokens.vocab_size)
    state = spec.build().state_dict()
    origin = llm.ModelOrigin(model=spec, adapter=None, tokenizer=None, seed=4).state_dict()
    objects = {"model": state, "optimizer": {}, TRACKED: origin}
    save_in_parts({"objects": objects}, tmp_path / "runs" / "parts" / "checkpoints")
    return state


def test_checkpoint_in_parts(in_parts: dict[str, torch.Tensor], tmp_path: Path) -> None:
    made = llm.export("parts", str(tmp_path / "out"), storage=str(tmp_path / "runs"))
    found = load(tmp_path / "out").state_dict()
    assert made.tensors == len(in_parts) == len(found)
    halves = llm.export("parts", str(tmp_path / "halves"), storage=str(tmp_path / "runs"), dtype="bf16")
    assert halves.num_bytes * 2 == made.num_bytes
    in_halves = load(tmp_path / "halves", dtype="auto").state_dict()
    for name, values in in_parts.items():
        assert torch.equal(found[name], values)
        assert torch.equal(in_halves[name], values.bfloat16())


def test_from_and_to_storage_that_is_not_local(in_parts: dict[str, torch.Tensor], tmp_path: Path) -> None:
    spec = llm.ModelSpec(name="tiny", vocab_size=in_parts["lm_head.weight"].shape[0])
    origin = llm.ModelOrigin(model=spec, adapter=None, tokenizer=None, seed=4).state_dict()
    save_in_parts({"objects": {"model": in_parts, TRACKED: origin}}, "memory://exported/runs/parts/checkpoints")
    made = llm.export("parts", "memory://exported/out", storage="memory://exported/runs")
    assert made.folder == "memory://exported/out"
    llm.export("parts", str(tmp_path / "here"), storage=str(tmp_path / "runs"))
    location = resolve("memory://exported/out")
    with location.fs.open_input_stream(f"{location.path}/model.safetensors") as stream:
        assert stream.read() == (tmp_path / "here" / "model.safetensors").read_bytes()


def test_damaged_part_leaves_no_model(in_parts: dict[str, torch.Tensor], tmp_path: Path) -> None:
    part = tmp_path / "runs" / "parts" / "checkpoints" / "step-000000003" / "part-00002"
    content = bytearray(part.read_bytes())
    content[100] ^= 1
    part.write_bytes(content)
    out = tmp_path / "out"
    with pytest.raises(CorruptFile, match="is corrupt: part 2.*Other steps of the run: none"):
        llm.export("parts", str(out), storage=str(tmp_path / "runs"))
    assert not (out / "config.json").exists()
    # The next export of the same checkpoint writes what is left of the folder again.
    content[100] ^= 1
    part.write_bytes(content)
    assert llm.export("parts", str(out), storage=str(tmp_path / "runs")).is_new
    assert load(out)


@pytest.mark.variation
def test_flipped_bit_of_a_whole_checkpoint_is_found(train_run: TrainRun, tmp_path: Path) -> None:
    train_run(steps=2)
    shard = next((tmp_path / "runs").glob("mine/checkpoints/step-*2/shard-00000.pt"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CorruptFile, match="shard 0 is not what was written"):
        llm.export("mine", str(tmp_path / "out"), storage=str(tmp_path / "runs"))


def test_what_cannot_be_exported(in_parts: dict[str, torch.Tensor], tmp_path: Path) -> None:
    storage, out = str(tmp_path / "runs"), str(tmp_path / "out")
    with pytest.raises(InvalidOption, match="there is no run 'other' in .*Its runs are parts"):
        llm.export("other", out, storage=storage)
    with pytest.raises(InvalidOption, match=r"no checkpoint of step 7. It has steps 3"):
        llm.export("parts", out, storage=storage, step=7)
    with pytest.raises(InvalidOption, match="trained all of its model: there is no adapter"):
        llm.export("parts", out, storage=storage, merge=True)
    with pytest.raises(InvalidOption, match="dtype='int8' is unknown. Choose one of 'fp32', 'bf16', 'fp16'"):
        llm.export("parts", out, storage=storage, dtype="int8")
    (tmp_path / "runs" / "empty").mkdir()
    with pytest.raises(InvalidOption, match="run 'empty' has no checkpoint"):
        llm.export("empty", out, storage=storage)
    save_in_parts({"objects": {"model": {"weight": torch.ones(4, 2)}}}, tmp_path / "runs" / "clicks" / "checkpoints")
    with pytest.raises(InvalidOption, match="did not say which language model it trained: .* states of model"):
        llm.export("clicks", out, storage=storage)
    assert not Path(out).exists()
    llm.export("parts", out, storage=storage)
    with pytest.raises(InvalidOption, match="holds the model of step 3 of run 'parts' in fp32, and this would be"):
        llm.export("parts", out, storage=storage, dtype="bf16")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(InvalidOption, match="holds notes.txt, and this would be the model of step 3"):
        llm.export("parts", str(tmp_path / "mine"), storage=storage)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_run_does_not_go_on_with_another_adapter(train_run: TrainRun) -> None:
    train_run(adapter=llm.Lora(r=4), steps=2)
    with pytest.raises(fb.errors.BadJob, match="was trained with lora_r=4, .* and this run has lora_r=4, lora_alpha=8"):
        train_run(adapter=llm.Lora(r=4, alpha=8), steps=2)


def test_another_base_than_the_one_of_the_run_is_told(
    train_run: TrainRun, base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train_run(model=str(base), adapter=llm.Lora(r=4), steps=2)
    identity = {"model": f"base ({folder_digest(str(base))[:12]}) in nf4"}
    facts = {"version": job_facts.VERSION, "identity": identity, "parameters": {}}
    (tmp_path / "runs" / "mine" / job_facts.FILE_NAME).write_text(json.dumps(facts))
    llm.export("mine", str(tmp_path / "out"), storage=str(tmp_path / "runs"), merge=True)
    assert "changed or replaced" not in caplog.text
    model = load(base)
    model.model.norm.weight.data += 1
    model.save_pretrained(base)
    llm.export("mine", str(tmp_path / "again"), storage=str(tmp_path / "runs"), merge=True)
    assert f"The base model {base} was changed or replaced since run 'mine' began" in caplog.text


def test_adapter_beside_4_bit_weights_is_merged_into_what_they_stand_for(
    train_run: TrainRun, tokens: llm.PreparedTokens, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loss = train_run(adapter=llm.Lora(r=4), model_options={"quantization": "nf4"})
    llm.export("mine", str(tmp_path / "out"), storage=str(tmp_path / "runs"), merge=True)
    assert "trained beside 4-bit weights" in caplog.text
    assert loss_of(load(tmp_path / "out"), tokens) == pytest.approx(loss, abs=1e-5)
