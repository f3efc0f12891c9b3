"""New tokens of a chat format: in the tokenizer, in the model, trained and exported."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import forebay as fb
from forebay import llm
from forebay.errors import InvalidOption
from forebay.llm.fine_tuning import set_up
from forebay.llm.new_tokens import add_rows, check_trained
from forebay.llm.source.tokenizers import load_folder, load_tokenizer
from forebay.llm.tuning_job import job
from forebay.testing.data.chats import write_chats

NEW = ("<|tool|>", "<|end|>")
TEMPLATE = "{% for m in messages %}<|tool|>{% generation %}{{ m.content }}<|end|>{% endgeneration %}{% endfor %}"

MakeBase = Callable[..., Path]


@pytest.fixture
def make_base(tokenizer: Any, tmp_path: Path) -> MakeBase:
    """Folder of a small model, with `spare` rows more than its tokenizer has entries."""

    def make(*, is_tied: bool = False, spare: int = 0) -> Path:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=len(tokenizer) + spare,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            tie_word_embeddings=is_tied,
            eos_token_id=tokenizer.eos_token_id,
        )
        folder = tmp_path / f"base-{is_tied}-{spare}"
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


def test_new_tokens_are_the_last_entries_and_never_split(make_base: MakeBase, tokenizer: Any) -> None:
    folder = str(make_base())
    spec = llm.tokenizer(folder, new_tokens="<|tool|>, <|end|>")
    found = load_tokenizer(spec)
    assert found("a <|tool|>b<|end|>")["input_ids"].count(len(tokenizer)) == 1
    assert found.convert_tokens_to_ids([*NEW]) == [len(tokenizer), len(tokenizer) + 1]
    assert found.decode(found("a<|end|>")["input_ids"], skip_special_tokens=True) == "a"
    assert spec == llm.tokenizer(folder, new_tokens=NEW)
    assert spec.identity() != llm.tokenizer(folder).identity()
    assert spec.identity() != llm.tokenizer(folder, new_tokens=NEW[::-1]).identity()


@pytest.mark.parametrize(
    ("new_tokens", "words"),
    [
        ("<|im_end|>", "'<|im_end|>' is an entry of the tokenizer of .* already"),
        ("<|tool|>,", "has an empty name"),
        ("<|tool|>,<|tool|>", "names '<|tool|>' twice"),
    ],
)
def test_wrong_tokens_are_refused(make_base: MakeBase, new_tokens: str, words: str) -> None:
    with pytest.raises(InvalidOption, match=words.replace("|", r"\|")):
        load_tokenizer(llm.tokenizer(str(make_base()), new_tokens=new_tokens))


def test_a_tokenizer_that_is_trained_has_no_new_tokens() -> None:
    with pytest.raises(InvalidOption, match="the tokenizer of model='tiny' is trained on the data"):
        llm.tokenizer("tiny", new_tokens=NEW)


@pytest.mark.parametrize(("is_tied", "spare"), [(False, 0), (True, 0), (False, 1), (True, 7)])
def test_rows_begin_as_the_mean_of_the_others(make_base: MakeBase, tokenizer: Any, is_tied: bool, spare: int) -> None:
    known, rows = len(tokenizer), len(tokenizer) + max(spare, 2)
    model = transformers.AutoModelForCausalLM.from_pretrained(make_base(is_tied=is_tied, spare=spare))
    with torch.device("meta"):
        without_memory = transformers.AutoModelForCausalLM.from_config(model.config)
    before = [each.weight.detach().clone() for each in layers_of(model)]
    for each in (model, without_memory):
        add_rows(each, known + 2, 2)
        assert each.config.vocab_size == rows
        assert {len(layer.weight) for layer in layers_of(each)} == {rows}
        assert len({layer.weight for layer in layers_of(each)}) == 2 - is_tied
    for layer, old in zip(layers_of(model), before, strict=True):
        assert torch.equal(layer.weight[:known], old[:known])
        torch.testing.assert_close(layer.weight[known : known + 2], old[:known].mean(0).expand(2, -1))


def layers_of(model: Any) -> list[Any]:
    return [model.get_input_embeddings(), model.get_output_embeddings()]


@pytest.mark.parametrize(
    ("is_tied", "saved", "wanted"),
    [
        (False, "", "modules_to_save=embed_tokens,lm_head"),
        (False, "embed_tokens", "modules_to_save=embed_tokens,lm_head"),
        (True, "", "modules_to_save=embed_tokens,"),
        (True, "model.embed_tokens", None),
        (False, "embed_tokens,lm_head", None),
    ],
)
def test_an_adapter_must_train_the_new_rows(make_base: MakeBase, is_tied: bool, saved: str, wanted: str | None) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(make_base(is_tied=is_tied))
    if wanted is None:
        check_trained(llm.Lora(modules_to_save=saved), model)
        return
    with pytest.raises(InvalidOption, match=wanted):
        check_trained(llm.Lora(modules_to_save=saved), model)


@pytest.fixture
def options(tmp_path: Path) -> Callable[..., llm.Options]:
    chats = write_chats(tmp_path / "chats", chats=24, held_out=2)
    shared = {"new_tokens": ",".join(NEW), "template": TEMPLATE, "seq_len": 64, "workers": 1, "check_memory": False}
    folders = {"data": str(chats.training), "storage": str(tmp_path / "runs"), "cache": str(tmp_path / "cache")}
    return partial(llm.Options, **shared, **folders)


def test_a_job_refuses_an_adapter_before_a_worker_starts(
    make_base: MakeBase, options: Callable[..., llm.Options]
) -> None:
    lora = partial(options, model=str(make_base()), finetuning="lora")
    with pytest.raises(InvalidOption, match="Set modules_to_save=embed_tokens,lm_head, or finetuning=full"):
        job(lora())
    made, other = (
        job(lora(modules_to_save="embed_tokens,lm_head")),
        job(lora(modules_to_save="embed_tokens,lm_head", new_tokens="<|end|>,<|tool|>")),
    )
    assert made.identity["tokenizer"] != other.identity["tokenizer"]


@pytest.mark.parametrize(
    ("is_tied", "saved"),
    [
        (False, None),
        (True, "embed_tokens"),
        pytest.param(True, None, marks=pytest.mark.variation("another model")),
        pytest.param(False, "embed_tokens,lm_head,q", marks=pytest.mark.variation("another model")),
        pytest.param(False, "embed_tokens,lm_head", marks=pytest.mark.variation("another model")),
    ],
)
def test_new_rows_are_trained_and_exported_with_their_tokenizer(
    make_base: MakeBase,
    tokenizer: Any,
    options: Any,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    is_tied: bool,
    saved: str | None,
) -> None:
    tuning = "qlora" if saved and saved.endswith(",q") else "lora"
    whole = saved and saved.removesuffix(",q")
    adapter = {} if saved is None else {"finetuning": tuning, "modules_to_save": whole, "lora_r": 2}
    made_base, sizes = make_base(is_tied=is_tied), {"lr": 1e-2, "global_batch": 8, "per_device_batch": 4}
    made = job(options(model=str(made_base), name="mine", gpus=0, **sizes, **adapter))
    recipe, trained = made.train.args[0], list[Any]()  # type: ignore[attr-defined]

    def train(worker: fb.Worker) -> None:
        built, model, optimizer = set_up(recipe, worker)
        trained.append(built)
        for batch in worker.loader():
            loss = worker.backward(batch, partial(llm.token_loss, model), weigh_by="targets", micro_rows=4)
            optimizer.step()
            optimizer.zero_grad()
            worker.commit(loss=loss)

    fb.run(replace(made, train=train), driver="local")
    folder, known = str(tmp_path / "exported"), len(tokenizer)
    llm.export("mine", folder, storage=str(tmp_path / "runs"), merge=saved is not None)
    exported, found = transformers.AutoModelForCausalLM.from_pretrained(folder), load_folder(folder)
    assert exported.config.vocab_size == known + 2
    assert found.chat_template == TEMPLATE
    ids = found("a<|tool|>b<|end|>", return_tensors="pt")["input_ids"]
    assert {known, known + 1} <= {*ids[0].tolist()}
    with torch.no_grad():
        logits = trained[0].eval()(input_ids=ids).logits
        torch.testing.assert_close(exported(ids).logits, logits, rtol=1e-4, atol=1e-4)
    assert json.loads((tmp_path / "exported/generation_config.json").read_text())["eos_token_id"] == [2, known + 1]
    if whole:
        import peft  # with it, a collection took 4 CPU seconds longer

        llm.export("mine", f"{folder}-adapter", storage=str(tmp_path / "runs"))
        assert f"resize_token_embeddings({known + 2})" in caplog.text
        base = transformers.AutoModelForCausalLM.from_pretrained(made_base)
        base.resize_token_embeddings(known + 2, mean_resizing=False)
        adapted = peft.PeftModel.from_pretrained(base, f"{folder}-adapter")
        with torch.no_grad():
            tolerance = 0.1 if tuning == "qlora" else 1e-4  # the base of 4 bits, and the whole one
            torch.testing.assert_close(adapted(input_ids=ids).logits, logits, rtol=tolerance, atol=tolerance)
    rows = exported.get_output_embeddings().weight[known:]
    assert not torch.allclose(rows[0], rows[1]), "they began as the same row"
