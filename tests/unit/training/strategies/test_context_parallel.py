"""Rows that ranks compute together: losses, gradients and evaluations are those of whole rows on one rank."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import forebay as fb
from forebay import llm
from forebay.testing.data.chats import write_chats
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.collectives.collective import Collective
from forebay.training.state.metric import scalar
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker

Ranks = Callable[..., list[Any]]
CLOSE = 1e-6
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 1, "max_position_embeddings": 256, "use_cache": False,
}  # fmt: skip
CONFIGS = {
    "llama": partial(transformers.LlamaConfig, **SIZES),
    "gemma2": partial(transformers.Gemma2Config, **SIZES, head_dim=8, sliding_window=9, attn_logit_softcapping=None),
    "gemma3": partial(transformers.Gemma3TextConfig, **SIZES, head_dim=8, sliding_window=9),
    "mixtral": partial(transformers.MixtralConfig, **SIZES, num_local_experts=4, num_experts_per_tok=2),
}


@dataclass(frozen=True, kw_only=True)
class ContextCase:
    world: int
    ranks: int
    model: str = "llama"
    strategy: str = "fsdp2"
    adapter: llm.Lora | None = None
    loss_chunk: int = 16
    checkpointing: bool = False
    rows: int = 4


LORA = llm.Lora(r=4)
MORE = [
    ContextCase(world=4, ranks=4, rows=5),
    ContextCase(world=4, ranks=2, strategy="ddp"),
    ContextCase(world=3, ranks=2, rows=7),
    ContextCase(world=2, ranks=2, model="gemma3", checkpointing=True, strategy="ddp"),
    ContextCase(world=4, ranks=4, model="gemma2", loss_chunk=0),
    ContextCase(world=2, ranks=2, model="mixtral", checkpointing=True),
    ContextCase(world=2, ranks=2, model="mixtral", strategy="ddp", adapter=LORA),
]


def trained(
    collective: Collective, data: fb.Data, folder: Path, recorder: Any, strategy: str, recipe: llm.Recipe, steps: int
) -> list[dict[str, float]]:
    """Metrics of each step and evaluation, without rates."""
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    spec = TrainSpec(data=data, held_out=data, seed=3, strategy=strategy, checkpoint_every=2, eval_every=2)
    found: list[dict[str, float]] = []
    commit = Worker.commit

    class StepKeeper(Worker):
        def commit(self, **metrics: Any) -> None:
            found.append({name: float(scalar(name, metrics[name])) for name in ("loss", "grad_norm")})
            commit(self, **metrics)

        def evaluate_with(self, evaluate: Any) -> None:
            def recorded() -> Any:
                made = evaluate()
                found.append(dict(made.metrics))
                return made

            super().evaluate_with(recorded)

    StepKeeper(replace(spec, max_steps=steps), collective, None, DirectoryStore(folder), recorder()).run(
        partial(llm.finetune, recipe)
    )
    return found


def token_data(folder: Path, global_batch: int) -> tuple[llm.PreparedTokens, fb.Data]:
    chats = write_chats(folder, chats=40, held_out=5)
    source = llm.TokenSource(str(chats.training), llm.tokenizer("tiny"), seq_len=96, overflow="split")
    tokens = llm.prepared_tokens(fb.prepare(source, into=str(folder / "into")))
    plan = fb.build_plan(tokens.prepared.manifest, seed=1, lanes=4)
    return tokens, fb.Data(plan=plan, transform=llm.token_rows(), global_batch=global_batch)


def recipe_of(case: ContextCase, vocab_size: int, folder: Path) -> llm.Recipe:
    torch.manual_seed(0)
    config = CONFIGS[case.model](vocab_size=vocab_size)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    model = llm.ModelSpec(name=str(folder), vocab_size=vocab_size, gradient_checkpointing=case.checkpointing)
    # The length of a run does not change its rates.
    options: dict[str, Any] = {"lr": 1e-3, "schedule": "constant", "warmup": 0.0}
    return llm.Recipe(model=model, loss_chunk=case.loss_chunk, adapter=case.adapter, **options)


def assert_equal(found: list[dict[str, float]], wanted: list[dict[str, float]]) -> None:
    assert len(found) == len(wanted) > 2
    for step, other in zip(found, wanted, strict=True):
        assert step == pytest.approx(other, rel=CLOSE)


@pytest.mark.parametrize(
    "case",
    [
        ContextCase(world=2, ranks=2),
        *(pytest.param(each, marks=pytest.mark.variation("architectures and worlds")) for each in MORE),
    ],
    ids=lambda case: f"{case.model}-{case.ranks}of{case.world}-{case.strategy}",
)
def test_rows_of_several_ranks_are_those_of_one(
    ranks: Ranks, tmp_path: Path, make_recorder: Any, case: ContextCase
) -> None:
    """Also where a key has fewer heads than there are ranks, and where a rank is left over."""
    tokens, data = token_data(tmp_path, case.rows)
    recipe = recipe_of(case, tokens.vocab_size, tmp_path / "model")
    (whole,) = ranks(1, trained, data, tmp_path / "whole", make_recorder, "ddp", recipe, 3)
    recipe = replace(recipe, context_parallel=case.ranks)
    parts = ranks(case.world, trained, data, tmp_path / "parts", make_recorder, case.strategy, recipe, 3)
    for found in parts:
        assert_equal(found, whole)


@pytest.mark.variation("three trainings")
def test_a_run_goes_on_with_other_ranks_for_a_row(ranks: Ranks, tmp_path: Path, make_recorder: Any) -> None:
    tokens, data = token_data(tmp_path, 4)
    recipe = recipe_of(ContextCase(world=1, ranks=1), tokens.vocab_size, tmp_path / "model")
    (whole,) = ranks(1, trained, data, tmp_path / "whole", make_recorder, "ddp", recipe, 4)
    found: list[dict[str, float]] = []
    for world, each, strategy, steps in ((2, 2, "fsdp2", 2), (3, 2, "ddp", 4)):
        part = replace(recipe, context_parallel=each)
        found += ranks(world, trained, data, tmp_path / "parts", make_recorder, strategy, part, steps)[0]
    # The first step of a start is evaluated before it.
    assert_equal([each for each in found if "loss" in each], [each for each in whole if "loss" in each])
