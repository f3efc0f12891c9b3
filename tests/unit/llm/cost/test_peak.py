"""The estimate is never below what PyTorch's allocator hands out in two steps, and at most a tenth above."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from torch import nn

from forebay import llm
from forebay.data.loader.batch import Batch
from forebay.llm.chat.documents import Document
from forebay.llm.cost.memory import MemoryPlan, estimate_memory
from forebay.llm.loss import model_outputs, token_loss
from forebay.llm.packing import RowLayout, arrange, num_targets
from forebay.training.collectives.collective import SingleProcessCollective
from forebay.training.collectives.micro_batches import MicroBatches

ROWS = 4
WIDE = {
    "hidden_size": 128, "intermediate_size": 352, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 1000, "num_hidden_layers": 6, "max_position_embeddings": 512, "use_cache": False,
}  # fmt: skip
MODELS: dict[str, Any] = {
    "llama": partial(transformers.LlamaConfig, **WIDE, tie_word_embeddings=False),
    "large vocabulary": partial(transformers.LlamaConfig, **WIDE | {"vocab_size": 16_000}, tie_word_embeddings=True),
    "qwen3": partial(transformers.Qwen3Config, **WIDE, head_dim=32),
    "gemma3": partial(transformers.Gemma3TextConfig, **WIDE, head_dim=32, sliding_window=64),
    "mixtral": partial(transformers.MixtralConfig, **WIDE, num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": partial(
        transformers.Qwen3MoeConfig,
        **WIDE,
        head_dim=32,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=96,
    ),
    "deep": partial(transformers.MistralConfig, **WIDE | {"num_hidden_layers": 12, "hidden_size": 64}),
}


@dataclass(frozen=True, kw_only=True)
class PeakCase:
    model: str = "llama"
    seq_len: int = 256
    rows: int = 2
    attn: Any = "sdpa"
    dtype: Any = "fp32"
    checkpointing: bool = False
    loss_chunk: int = 128
    adapter: llm.Lora | None = None
    quantization: Any = None
    head: Any = "tokens"
    new_tokens: int = 0
    compile: bool = False


LORA = llm.Lora(r=8)
CASES = [
    PeakCase(),
    PeakCase(dtype="bf16", adapter=LORA),
]
MORE = [
    PeakCase(checkpointing=True, dtype="bf16"),
    PeakCase(checkpointing=True),
    PeakCase(dtype="bf16"),
    PeakCase(rows=ROWS),
    PeakCase(rows=ROWS, checkpointing=True, adapter=LORA),
    PeakCase(adapter=LORA, checkpointing=True, dtype="bf16"),
    PeakCase(adapter=LORA),
    PeakCase(adapter=llm.Lora(r=4, targets="q_proj,v_proj"), dtype="bf16"),
    PeakCase(adapter=LORA, quantization="nf4"),
    PeakCase(adapter=LORA, quantization="nf4", dtype="bf16"),
    PeakCase(adapter=LORA, quantization="nf4", dtype="bf16", checkpointing=True),
    PeakCase(attn="eager"),
    PeakCase(attn="eager", dtype="bf16", checkpointing=True),
    PeakCase(attn="documents"),
    PeakCase(attn="documents", adapter=LORA, dtype="bf16"),
    PeakCase(loss_chunk=0, model="large vocabulary"),
    PeakCase(model="large vocabulary"),
    PeakCase(model="large vocabulary", checkpointing=True, adapter=LORA, dtype="bf16"),
    PeakCase(model="qwen3", dtype="bf16"),
    PeakCase(model="qwen3", adapter=LORA, checkpointing=True),
    PeakCase(model="gemma3"),
    PeakCase(model="gemma3", dtype="bf16", checkpointing=True),
    PeakCase(model="mixtral"),
    PeakCase(model="mixtral", dtype="bf16", checkpointing=True),
    PeakCase(model="mixtral", adapter=LORA, dtype="bf16"),
    PeakCase(model="mixtral", adapter=llm.Lora(r=4, targets="all-linear,experts")),
    PeakCase(model="mixtral", adapter=LORA, quantization="nf4", dtype="bf16", checkpointing=True),
    PeakCase(model="qwen3_moe", adapter=LORA, quantization="nf4"),
    PeakCase(model="qwen3_moe"),
    PeakCase(model="large vocabulary", head="reward"),
    PeakCase(model="large vocabulary", head="reward", adapter=LORA, dtype="bf16"),
    PeakCase(new_tokens=3000),
    PeakCase(compile=True),
    PeakCase(compile=True, dtype="bf16"),
    PeakCase(compile=True, dtype="bf16", adapter=LORA),
    PeakCase(compile=True, dtype="bf16", checkpointing=True),
    PeakCase(compile=True, model="qwen3", dtype="bf16"),
    PeakCase(compile=True, model="gemma3"),
    PeakCase(compile=True, model="mixtral", dtype="bf16"),
    PeakCase(compile=True, model="deep", seq_len=512, rows=1),
    PeakCase(model="deep", seq_len=512, rows=1),
    PeakCase(model="deep", seq_len=512, rows=1, checkpointing=True, dtype="bf16"),
    PeakCase(model="deep", seq_len=128, rows=ROWS, adapter=LORA),
]


def packed_rows(seq_len: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    documents = [
        Document(rng.integers(5, 900, length).astype(np.int32), np.ones(length, bool))
        for length in [seq_len // 2, seq_len // 4, seq_len // 4] * ROWS
    ]
    return arrange(documents, RowLayout(seq_len=seq_len))[:ROWS]


def allocated_peak(run: Callable[[], None]) -> int:
    """Most bytes beside those that were there, by the allocator's own reports."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    events = [each for each in profile.profiler.kineto_results.events() if each.name() == "[memory]"]
    return int(np.cumsum([each.nbytes() for each in sorted(events, key=lambda each: each.start_ns())]).max())


def measured(recipe: llm.Recipe, seq_len: int) -> int:
    packed = packed_rows(seq_len)
    arrays = {"tokens": torch.from_numpy(packed), "targets": torch.from_numpy(num_targets(packed))}
    batch = Batch(arrays, num_rows=ROWS, size=ROWS)
    torch.manual_seed(0)
    model = recipe.build_model("cpu")

    def loss_of(part: Batch) -> torch.Tensor:
        with recipe.autocast(torch.device("cpu")):
            if recipe.model.head == "reward":
                return model_outputs(model, part["tokens"]).double().sum()
            return token_loss(model, part, chunk=recipe.loss_chunk)

    def run() -> None:
        optimizer = recipe.optimizer(model.parameters())
        passes = MicroBatches(rows=recipe.per_device_batch, weigh_by="targets")
        for _ in range(2):
            weighed = passes.over(batch, SingleProcessCollective(), ranks=1)
            weighed.backward(batch, loss_of, passes=-(-ROWS // recipe.per_device_batch))
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    loss_of(batch.take(np.zeros(1, np.int64), weight=1.0))  # Compiled code and tables of a first pass.
    weights = {each.data_ptr(): each.nbytes for each in model.parameters()}
    states = [
        each
        for module in model.modules()
        if (found := getattr(module, "weight", None)) is not None
        for each in vars(getattr(found, "quant_state", nullcontext())).values()
        if isinstance(each, torch.Tensor)
    ]
    scales = sum(each.nbytes for name, each in model.named_buffers() if name.endswith("_scales"))
    return scales + sum(weights.values()) + sum(each.nbytes for each in states) + allocated_peak(run)


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(each, marks=pytest.mark.variation("many models")) for each in MORE)], ids=str
)
def test_estimate_is_at_most_a_tenth_above_what_is_allocated(
    tmp_path: Path, case: PeakCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # its thread has no end
    torch.manual_seed(0)
    torch.compiler.reset()  # which compiles a function for a few cases only
    transformers.AutoModelForCausalLM.from_config(MODELS[case.model]()).save_pretrained(tmp_path)
    recipe = llm.Recipe(
        model=llm.ModelSpec(
            name=str(tmp_path),
            vocab_size=1000 + case.new_tokens,
            new_tokens=case.new_tokens,
            head=case.head,
            attn=case.attn,
            gradient_checkpointing=case.checkpointing,
            quantization=case.quantization,
            compile=case.compile,
        ),
        adapter=case.adapter,
        per_device_batch=case.rows,
        dtype=case.dtype,
        loss_chunk=case.loss_chunk,
    )
    plan = llm.memory_plan(recipe, workers=1, seq_len=case.seq_len, gpus=0)
    estimate = estimate_memory(replace(plan, global_batch=ROWS))
    taken = measured(recipe, case.seq_len)
    assert taken <= estimate.total <= 1.1 * taken, f"{estimate.total / taken:.3f} {estimate.device}"


@pytest.mark.variation("a large model")
@pytest.mark.parametrize(
    ("measured_gib", "options"),
    [
        (35.23, {"attn": "sdpa"}),
        (33.99, {}),
        (21.6, {"weights": "bf16", "compile": True}),
        (20.83, {"finetuning": "lora", "weights": "float32"}),
        (12.6, {"finetuning": "lora", "compile": True}),
    ],
)
def test_estimate_is_at_most_a_tenth_above_what_a_gpu_took(
    tmp_path: Path, measured_gib: float, options: dict[str, Any]
) -> None:
    """Peaks of `bench.device.llm_speed` on an H200 (docs/llm-memory.md)."""
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}
    config = transformers.LlamaConfig(
        **WIDE | sizes | {"num_hidden_layers": 16, "vocab_size": 32_000}, head_dim=64, tie_word_embeddings=True
    )
    config.save_pretrained(tmp_path)
    safetensors.torch.save_file({"unread": torch.zeros(1)}, tmp_path / "model.safetensors")
    plan = MemoryPlan(
        model=str(tmp_path), seq_len=2048, per_device_batch=4, global_batch=8, gradient_checkpointing=False, **options
    )
    taken = measured_gib * 2**30
    assert taken <= estimate_memory(plan).total <= 1.1 * taken
