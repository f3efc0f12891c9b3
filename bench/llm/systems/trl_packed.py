"""TRL: `SFTTrainer` with its own packing, best fit decreasing. A pass is one flat row of all its documents.

https://huggingface.co/docs/trl/sft_trainer#packing
"""

from __future__ import annotations

import torch
import transformers
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

from bench.llm.probe import Probe
from bench.llm.setting import LlmSetting


def run(setting: LlmSetting, answer: str) -> None:
    Probe(setting, answer).watch(transformers.LlamaForCausalLM, transformers.LlamaModel)
    tokenizer = transformers.AutoTokenizer.from_pretrained(setting.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(setting.model, dtype=torch.float32)
    data = load_dataset("json", data_files=setting.chats, split="train", cache_dir=f"{setting.work}/datasets")
    arguments = SFTConfig(
        **setting.common(setting.step_rows, setting.pass_rows),
        packing=True,
        max_length=setting.seq_len,
        assistant_only_loss=True,
        gradient_checkpointing=False,
    )
    trainer = SFTTrainer(model=model, args=arguments, train_dataset=data, processing_class=tokenizer)
    trainer.train(resume_from_checkpoint=setting.resume)
