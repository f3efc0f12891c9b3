"""Language models under each strategy: the loss over targets, in chunks, is the plain loss over all positions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import forebay as fb
from forebay import llm
from forebay.testing.data.chats import write_chats
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.collectives.collective import Collective
from forebay.training.strategies.choice import INSTALL
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker

Ranks = Callable[..., list[Any]]
CLOSE = 1e-5
STEPS = 4


def trained(
    collective: Collective, data: fb.Data, folder: Path, recorder: Any, strategy: str, recipe: llm.Recipe
) -> list[tuple[float, float]]:
    """Loss of this rank and gradient norm of each step, and at last the held-out loss and exact match."""
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    spec = TrainSpec(data=data, held_out=data, seed=3, strategy=strategy, checkpoint_every=1000)
    found: list[tuple[float, float]] = []
    commit = Worker.commit

    class Recording(Worker):
        def commit(self, **metrics: Any) -> None:
            found.append((float(metrics["loss"]), float(metrics["grad_norm"])))
            if "validation_loss" in metrics:
                found.append((metrics["validation_loss"], metrics["exact_match"]))
            commit(self, **metrics)

    Recording(spec, collective, None, DirectoryStore(folder), recorder()).run(partial(llm.finetune, recipe))
    return found


@pytest.mark.variation("one training of a language model for each strategy and adapter")
@pytest.mark.parametrize("adapter", [None, llm.Lora(r=4)], ids=["full", "lora"])
@pytest.mark.parametrize(
    "strategy",
    [
        *("ddp", "fsdp2"),
        *(
            pytest.param(each, marks=pytest.mark.skipif(find_spec("deepspeed") is None, reason=INSTALL))
            for each in ("zero1", "zero2", "zero3")
        ),
    ],
)
def test_loss_in_chunks_is_the_plain_loss(
    ranks: Ranks, tmp_path: Path, make_recorder: Any, strategy: str, adapter: llm.Lora | None
) -> None:
    """3 rows a step on 2 ranks, one a pass: a rank without a row of its own passes one without targets."""
    chats = write_chats(tmp_path, chats=24, held_out=5)
    source = llm.TokenSource(str(chats.training), llm.tokenizer("tiny"), seq_len=96, overflow="split")
    tokens = llm.prepared_tokens(fb.prepare(source, into=str(tmp_path / "into")))
    plan = fb.build_plan(tokens.prepared.manifest, seed=1, lanes=2)
    data = fb.Data(plan=plan, transform=llm.token_rows(), global_batch=3)
    answers = {}
    for name, chunk in (("ddp", 0), (strategy, 16)):
        model = llm.ModelSpec(name="tiny", vocab_size=tokens.vocab_size, gradient_checkpointing=chunk > 0)
        recipe = llm.Recipe(model=model, lr=1e-3, adapter=adapter, loss_chunk=chunk)
        answers[chunk] = ranks(2, trained, data, tmp_path / f"{name}-{chunk}", make_recorder, name, recipe)
    for plain, in_chunks in zip(answers[0], answers[16], strict=True):
        assert len(plain) > STEPS
        for step, its_step in zip(plain, in_chunks, strict=True):
            assert its_step == pytest.approx(step, rel=CLOSE)


@pytest.mark.variation("two trainings of a language model for each adapter")
@pytest.mark.parametrize("adapter", [None, llm.Lora(r=4)], ids=["full", "lora"])
def test_weights_in_bf16_train_alike_whole_and_in_parts(
    ranks: Ranks, tmp_path: Path, make_recorder: Any, adapter: llm.Lora | None
) -> None:
    """A part of a weight is rounded by the noise of its own elements."""
    chats = write_chats(tmp_path, chats=24, held_out=5)
    source = llm.TokenSource(str(chats.training), llm.tokenizer("tiny"), seq_len=96, overflow="split")
    tokens = llm.prepared_tokens(fb.prepare(source, into=str(tmp_path / "into")))
    data = fb.Data(
        plan=fb.build_plan(tokens.prepared.manifest, seed=1, lanes=2), transform=llm.token_rows(), global_batch=4
    )
    model = llm.ModelSpec(name="tiny", vocab_size=tokens.vocab_size)
    recipe = llm.Recipe(model=model, lr=1e-3, adapter=adapter, weights="bf16", per_device_batch=2)
    whole, parts = (
        ranks(2, trained, data, tmp_path / name, make_recorder, name, recipe)[0] for name in ("ddp", "fsdp2")
    )
    assert len(whole) > STEPS
    for step, its_step in zip(whole, parts, strict=True):
        assert its_step == pytest.approx(step, rel=5e-3, abs=5e-3)
