"""Fine-tuning on one GPU: tokens/s, MFU, and the peak of memory beside its estimate, beside a loop of HF Trainer.

    PYTHONPATH=platform python -m bench.device.llm_speed > llm.txt
    PYTHONPATH=platform python -m bench.device.llm_speed --only full,hf --seconds 120

One process, at most five minutes. A Llama of 1.0 billion parameters, 8 rows of 2,048 tokens a step, in passes of 4.
Every way reads the same packed rows. Without a GPU, a tiny model shows that the bench runs. Ways that do not fit into
`--seconds` are left out, and said. Needs torch, transformers, peft, numpy, pyarrow; for QLoRA bitsandbytes.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from bench.machine import machine
from bench.turns import markdown_table
from forebay import llm
from forebay.data.loader.batch import Batch
from forebay.llm.chat.documents import Document
from forebay.llm.cost.flops import count_flops
from forebay.llm.cost.known_models import model_config
from forebay.llm.cost.memory import estimate_memory
from forebay.llm.cost.meter import device_peak, peak_memory, reset_peak_memory, step_cost
from forebay.llm.loss import token_loss
from forebay.llm.packing import RowLayout, arrange, num_targets
from forebay.training.collectives.collective import SingleProcessCollective
from forebay.training.collectives.micro_batches import MicroBatches

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
STEPS, SKIP = (12, 4) if GPU else (3, 1)
ROWS, OF_PASS, SEQ_LEN = (8, 4, 2048) if GPU else (4, 2, 128)
SIZES: Mapping[str, Any] = (
    {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
     "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 32_000}
    if GPU
    else {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1000}
)  # fmt: skip


@dataclass(frozen=True)
class TuningWay:
    """One row of the table."""

    name: str
    model: Mapping[str, Any]
    recipe: Mapping[str, Any]


def way(name: str, recipe: Mapping[str, Any] | None = None, **model: Any) -> TuningWay:
    """Way of training, by what differs from the defaults."""
    return TuningWay(name, {"gradient_checkpointing": False, "vocab_size": SIZES["vocab_size"]} | model, recipe or {})


LORA = {"adapter": llm.Lora(r=16)}
WAYS = (
    way("full"),
    way("full, sdpa", attn="sdpa"),
    way("full, compile", compile=True),
    way("full, bf16 weights", {"weights": "bf16"}),
    way("full, bf16 weights, compile", {"weights": "bf16"}, compile=True),
    way("full, checkpointing", gradient_checkpointing=True),
    way("full, 8-bit AdamW", {"algorithm": "adamw8bit"}),
    way("lora", LORA),
    way("lora, float32 weights", LORA | {"weights": "float32"}),
    way("lora, compile", LORA, compile=True),
    way("qlora", LORA, quantization="nf4"),
)
TRAINER = {"hf, packed": True, "hf, rows as one document": False}


def write_model(folder: Path) -> None:
    """Write the weights, in bf16 as published models have them."""
    config = transformers.LlamaConfig(tie_word_embeddings=True, max_position_embeddings=8192, use_cache=False, **SIZES)
    torch.manual_seed(0)
    with DEVICE:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)


def packed_rows() -> np.ndarray:
    """Documents with a long tail of lengths, in rows."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(SEQ_LEN / 5), 0.8, 4000).astype(int), 16, SEQ_LEN)
    lengths = lengths[: int(np.searchsorted(lengths.cumsum(), STEPS * ROWS * SEQ_LEN)) + 1]
    documents = [
        Document(rng.integers(10, 300, each).astype(np.int32), np.ones(each, bool)) for each in lengths.tolist()
    ]
    rows = arrange(documents, RowLayout(seq_len=SEQ_LEN))
    return np.concatenate([rows] * (STEPS * ROWS // len(rows) + 1))[: STEPS * ROWS]


def batches(rows: np.ndarray) -> list[Batch]:
    """Steps, on the device."""
    found = []
    for words in rows.reshape(STEPS, ROWS, SEQ_LEN):
        arrays = {"tokens": torch.from_numpy(words), "targets": torch.from_numpy(num_targets(words))}
        found.append(Batch(arrays, num_rows=ROWS, size=ROWS).to(DEVICE))
    return found


def settled() -> float:
    """Time at which all that was started on the device has ended."""
    if GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


def forebay_way(chosen: TuningWay, folder: Path, rows: np.ndarray) -> dict[str, Any]:
    """Steps of `llm.finetune`, without a run around them."""
    recipe = llm.Recipe(
        model=llm.ModelSpec(name=str(folder), **chosen.model), per_device_batch=OF_PASS, **chosen.recipe
    )
    plan = llm.memory_plan(recipe, workers=1, seq_len=SEQ_LEN, gpus=float(GPU))
    estimate = estimate_memory(replace(plan, global_batch=ROWS)).total
    torch.manual_seed(0)
    reset_peak_memory(DEVICE)
    model = recipe.build_model(DEVICE).to(DEVICE)
    optimizer = recipe.optimizer(model.parameters())
    passes = MicroBatches(rows=OF_PASS, weigh_by="targets")

    def loss_of(part: Batch) -> torch.Tensor:
        with recipe.autocast(DEVICE):
            return token_loss(model, part, chunk=recipe.loss_chunk)

    times, losses, flops = [settled()], [], 0.0
    per_token = count_flops(model_config(str(folder)), recipe.adapter)
    for number, batch in enumerate(batches(rows)):
        weighed = passes.over(batch, SingleProcessCollective(DEVICE), ranks=1)
        losses.append(weighed.backward(batch, loss_of, passes=ROWS // OF_PASS))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if number >= SKIP:
            flops += float(step_cost(batch, per_token, targets_only=True).flops)
        times.append(settled())
    peak = device_peak(DEVICE, recipe.compute_type(DEVICE))
    facts = {"mfu": None if peak is None else flops / (times[-1] - times[SKIP]) / peak, "estimate": estimate}
    return facts | rates(times) | {"loss": float(losses[-1])}


class StepClock(transformers.TrainerCallback):
    """Time of each step, and the last loss."""

    def __init__(self) -> None:
        self.times = [settled()]

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.times.append(settled())


def trainer_way(folder: Path, rows: np.ndarray, *, is_packed: bool) -> dict[str, Any]:
    """HF Trainer on the same rows, with fused AdamW and bf16 on a GPU."""
    tokens = llm.unpack(torch.from_numpy(rows))
    names = ("input_ids", "labels", "position_ids") if is_packed else ("input_ids", "labels")
    data = [{name: getattr(tokens, name)[at] for name in names} for at in range(len(rows))]
    reset_peak_memory(DEVICE)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32", attn_implementation="sdpa")
    with tempfile.TemporaryDirectory() as out:
        arguments = transformers.TrainingArguments(
            output_dir=out, per_device_train_batch_size=OF_PASS, gradient_accumulation_steps=ROWS // OF_PASS,
            max_steps=STEPS, learning_rate=2e-5, optim="adamw_torch_fused" if GPU else "adamw_torch", bf16=GPU,
            logging_steps=1000, report_to="none", save_strategy="no", disable_tqdm=True, seed=7, use_cpu=not GPU,
        )  # fmt: skip
        clock = StepClock()
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=[clock])  # type: ignore[arg-type]
        loss = trainer.train().training_loss
    return {"mfu": None, "estimate": None, "loss": loss} | rates(clock.times)


def rates(times: list[float]) -> dict[str, Any]:
    """Tokens per second without the first steps, the first step, and the peak."""
    tokens = (len(times) - 1 - SKIP) * ROWS * SEQ_LEN
    first = times[1] - times[0]
    return {"tokens_s": tokens / (times[-1] - times[SKIP]), "first_step_s": first, "peak": peak_memory(DEVICE)}


def row(line: Mapping[str, Any], parameters: int) -> tuple[str, ...]:
    """Row of the table."""
    if "failed" in line:
        return (f"{line['name']}: {line['failed']}", *["-"] * 7)
    peak = device_peak(DEVICE, torch.bfloat16)
    own = "-" if line["mfu"] is None else f"{line['mfu']:.3f}"
    sixfold = "-" if peak is None else f"{6 * parameters * line['tokens_s'] / peak:.3f}"
    estimate = "-" if line["estimate"] is None or not GPU else f"{line['estimate'] / 2**30:.2f}"
    numbers = (f"{line['tokens_s']:,.0f}", own, sixfold, f"{line['peak'] / 2**30:.2f}", estimate)
    return (line["name"], *numbers, f"{line['first_step_s']:.1f}", f"{line['loss']:.4f}")


HEAD = ("way", "tokens/s", "MFU", "MFU of 6 N", "peak GiB", "estimate", "first step, s", "last loss")


def main() -> None:
    """Run the ways in turn, and print a line for each and then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="ways whose names have one of these words, with commas between")
    parser.add_argument("--seconds", type=float, default=280.0, help="no way begins after these")
    given = parser.parse_args()
    began, lines = time.perf_counter(), []
    print(json.dumps(machine()))
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        model = Path(folder) / "model"
        write_model(model)
        parameters = sum(each.numel() for each in llm.ModelSpec(name=str(model), vocab_size=1).build().parameters())
        rows = packed_rows()
        ways: dict[str, Callable[[], dict[str, Any]]] = {}
        ways |= {name: partial(trainer_way, model, rows, is_packed=packed) for name, packed in TRAINER.items()}
        ways |= {each.name: partial(forebay_way, each, model, rows) for each in WAYS}
        for name, measure in ways.items():
            if given.only and not any(word in name for word in given.only.split(",")):
                continue
            lines.append({"name": name} | measured(measure, is_late=time.perf_counter() - began > given.seconds))
            print(json.dumps(lines[-1]), flush=True)
    print(markdown_table([HEAD, *(row(line, parameters) for line in lines)]))


def measured(measure: Callable[[], dict[str, Any]], *, is_late: bool) -> dict[str, Any]:
    """Result of one way. One that fails does not end the others."""
    if is_late:
        return {"failed": "left out, the time was over"}
    before = torch.cuda.memory_allocated() if GPU else 0
    try:
        return measure() | {"held_before": before}
    except Exception as error:  # noqa: BLE001 - the rest of an expensive machine's time goes to the other ways
        return {"failed": f"{type(error).__name__}: {error}".partition("\n")[0][:150]}
    finally:
        torch.compiler.reset()  # what it has compiled holds the weights of its model
        gc.collect()
        if GPU:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
