"""axolotl: `axolotl train` with `sample_packing`, from one YAML.

https://docs.axolotl.ai/docs/config-reference.html
https://docs.axolotl.ai/docs/multipack.html
"""

from __future__ import annotations

import json
from pathlib import Path

import transformers
from axolotl.cli.args import TrainerCliArgs
from axolotl.cli.config import load_cfg
from axolotl.cli.train import do_train

from bench.llm.probe import Probe
from bench.llm.setting import LlmSetting


def run(setting: LlmSetting, answer: str) -> None:
    Probe(setting, answer).watch(transformers.LlamaForCausalLM, transformers.LlamaModel)
    data = {
        "path": setting.chats,
        "ds_type": "json",
        "type": "chat_template",
        "field_messages": "messages",
        "message_property_mappings": {"role": "role", "content": "content"},
        "roles_to_train": ["assistant"],
        "train_on_eos": "turn",
    }
    given = {
        "base_model": setting.model,
        "datasets": [data],
        "chat_template": "chatml",
        "dataset_prepared_path": f"{setting.work}/prepared",
        "output_dir": f"{setting.work}/out",
        "sequence_len": setting.seq_len,
        "sample_packing": True,
        "pad_to_sequence_len": True,
        "attn_implementation": "sdpa",
        "micro_batch_size": setting.pass_rows,
        "gradient_accumulation_steps": setting.accumulation(setting.step_rows, setting.pass_rows),
        "num_epochs": 100,
        "optimizer": "adamw_torch",
        "learning_rate": setting.rate,
        "lr_scheduler": "constant",
        "max_grad_norm": 1.0,
        "weight_decay": 0.0,
        "bf16": False,
        "fp16": False,
        "tf32": False,
        "save_strategy": "no",
        "logging_steps": 1,
        "seed": 7,
        "dataset_num_proc": 1,
        "dataloader_num_workers": 0,
        "use_tensorboard": False,
    }
    # YAML reads JSON.
    config = Path(setting.work) / "config.yaml"
    config.write_text(json.dumps(given))
    do_train(load_cfg(str(config)), TrainerCliArgs())
