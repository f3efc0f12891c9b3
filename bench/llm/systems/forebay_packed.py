"""Forebay: chats to packed rows once, the loop of `fb.llm.finetune`, and the local driver.

One worker trains in this process. Several are processes of their own, and each has its own probe.
"""

from __future__ import annotations

from functools import partial

import torch
import transformers

import forebay as fb
from bench.llm.probe import Probe
from bench.llm.setting import LlmSetting

_NEVER = 1 << 30


def run(setting: LlmSetting, answer: str) -> None:
    tokens = prepared(setting)
    recipe = fb.llm.Recipe(
        model=fb.llm.ModelSpec(name=setting.model, vocab_size=tokens.vocab_size),
        lr=setting.rate,
        schedule="constant",
        warmup=0.0,
        per_device_batch=setting.pass_rows,
    )
    plan = fb.build_plan(tokens.prepared.manifest, seed=7)
    job = fb.Job(
        train=partial(train, recipe, setting, answer),
        data=fb.Data(plan=plan, transform=fb.llm.token_rows(), global_batch=setting.step_rows),
        epochs=100,
        workers=setting.processes,
        checkpoint_every=setting.checkpoint_at or _NEVER,
        storage_every_s=0,
        max_failures=0,
        storage=f"{setting.work}/runs",
        name="bench",
        cache=None,
    )
    fb.run(job, driver="local")


def prepared(setting: LlmSetting, processes: int = 1) -> fb.llm.PreparedTokens:
    """Packed rows of the chats. A second call reads one small file."""
    tokenizer = fb.llm.tokenizer(setting.model, template="chatml")
    source = fb.llm.TokenSource(setting.chats, tokenizer, seq_len=setting.seq_len)
    return fb.llm.prepared_tokens(fb.prepare(source, into=f"{setting.work}/prepared", processes=processes))


def train(recipe: fb.llm.Recipe, setting: LlmSetting, answer: str, worker: fb.Worker) -> None:
    torch.set_num_threads(1)
    probe = Probe(setting, answer, worker.world.rank)
    probe.watch(transformers.LlamaForCausalLM, transformers.LlamaModel)
    fb.llm.finetune(recipe, worker)
