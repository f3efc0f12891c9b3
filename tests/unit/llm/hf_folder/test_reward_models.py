"""Exported reward models as transformers and peft load them: the rewards are those of the run."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import forebay as fb
from forebay import llm
from forebay.errors import InvalidOption
from forebay.llm.hf_folder.model_origin import ModelOrigin
from forebay.llm.hf_folder.side_files import pad_of_rewards
from forebay.llm.packing import ID_BITS, START, TARGET
from forebay.testing.data.chats import write_pairs
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.collectives.collective import SingleProcessCollective
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[llm.PreparedTokens, Any]:
    folder = tmp_path_factory.mktemp("pairs")
    spec = llm.tokenizer("tiny")
    source = llm.TokenSource(str(write_pairs(folder, pairs=40).training), spec, seq_len=160, overflow="drop")
    found = llm.prepared_tokens(fb.prepare(source, into=str(folder / "into")))
    return found, found.spec(spec)


def base_folder(folder: Path, tokens: llm.PreparedTokens, spec: Any, *, is_tied: bool) -> Path:
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=tokens.vocab_size + 3,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=is_tied,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokens.tokenizer(spec).save_pretrained(folder)
    return folder


def texts_of(row: np.ndarray) -> list[torch.Tensor]:
    begins = [*np.flatnonzero(row & START), len(row)]
    parts = [row[start:stop] for start, stop in pairwise(begins)]
    return [torch.from_numpy((each & ID_BITS).astype(np.int64))[None] for each in parts if (each & TARGET).any()]


@pytest.mark.parametrize(
    ("is_tied", "adapter"),
    [
        (True, None),
        (True, llm.Lora(r=4)),
        pytest.param(False, None, marks=pytest.mark.variation),
        pytest.param(False, llm.Lora(r=4, rslora=True), marks=pytest.mark.variation),
    ],
)
def test_rewards_are_those_of_the_run(
    pairs: tuple[llm.PreparedTokens, Any], tmp_path: Path, last_epoch: Any, is_tied: bool, adapter: llm.Lora | None
) -> None:
    import peft
    import transformers

    tokens, spec = pairs
    base = base_folder(tmp_path / "base", tokens, spec, is_tied=is_tied)
    model = llm.ModelSpec(name=str(base), vocab_size=tokens.vocab_size, head="reward")
    recipe = llm.Recipe(model=model, adapter=adapter, lr=1e-2, warmup=0, per_device_batch=4, tokenizer=spec)
    plan = fb.build_plan(tokens.prepared.manifest, shuffle=False, lanes=1)
    data = fb.Data(plan=plan, transform=llm.pair_rows(), global_batch=10)
    job = TrainSpec(data=data, held_out=data, seed=5, checkpoint_every=2)
    worker = Worker(
        job, SingleProcessCollective(), None, DirectoryStore(str(tmp_path / "runs/mine/checkpoints")), last_epoch
    )
    worker.run(partial(llm.prefer, recipe, preferences=llm.Preferences(loss="reward")))

    load = partial(transformers.AutoModelForSequenceClassification.from_pretrained, num_labels=1)
    made = llm.export("mine", str(tmp_path / "out"), storage=str(tmp_path / "runs"), merge=adapter is not None)
    whole, found = transformers.AutoModelForSequenceClassification.from_pretrained(
        made.folder, output_loading_info=True
    )
    assert not found["missing_keys"] and not found["unexpected_keys"]
    models = [whole]
    if adapter is not None:
        alone = llm.export("mine", str(tmp_path / "alone"), storage=str(tmp_path / "runs"))
        models.append(peft.PeftModel.from_pretrained(load(base), alone.folder))
        assert models[1].peft_config["default"].modules_to_save[0] == "score"
    with fb.Loader(plan, llm.pair_rows(), None, global_batch=100, as_numpy=True) as loader:
        rows = next(iter(loader))["tokens"]
    for each in models:
        each.eval()
        with torch.no_grad():
            rewards = torch.cat([each(input_ids=text).logits[0] for row in rows for text in texts_of(row)]).view(-1, 2)
        gains = (rewards[:, 0] - rewards[:, 1]).double()
        assert (gains > 0).double().mean().item() == pytest.approx(last_epoch.metrics["validation_accuracy"], abs=1e-9)
        loss = -torch.nn.functional.logsigmoid(gains).mean().item()
        assert loss == pytest.approx(last_epoch.metrics["validation_loss"], abs=2e-6)


def test_no_reward_is_read_before_the_end(pairs: tuple[llm.PreparedTokens, Any], tmp_path: Path) -> None:
    """With the end token as pad token, transformers takes the last token before it."""
    tokens, spec = pairs
    folder = base_folder(tmp_path, tokens, spec, is_tied=True)
    model = llm.ModelSpec(name=str(folder), vocab_size=tokens.vocab_size, head="reward")
    origin = ModelOrigin(model=model, adapter=None, tokenizer=llm.tokenizer(str(folder)), seed=0)
    assert pad_of_rewards(origin) == 0
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"pad_token": config["eos_token"]}))
    assert pad_of_rewards(origin) is None


def test_bases_without_a_class_are_refused() -> None:
    from forebay.llm.hf_folder.weights import skeleton_of
    from forebay.llm.models import tiny_sizes
    from forebay.llm.reward_head import check_reward_head

    gemma = {"model_type": "gemma2", "final_logit_softcapping": 30.0}
    with pytest.raises(InvalidOption, match="final_logit_softcapping=30.0"):
        check_reward_head(None, gemma)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    ernie4_5 = {"model_type": "ernie4_5", "vocab_size": 64, **sizes}
    with pytest.raises(InvalidOption, match="no sequence classification of model_type='ernie4_5'"):
        check_reward_head(skeleton_of(ernie4_5), ernie4_5)
    llama = {"model_type": "llama", **tiny_sizes(300)}
    check_reward_head(skeleton_of(llama), llama)
