"""LLaMA-Factory: `llamafactory-cli train` with `neat_packing`, which keeps documents apart.

It imports torchaudio, of which no build for CPUs is at hand, and uses it for sound only.

https://llamafactory.readthedocs.io/en/latest/advanced/arguments.html
"""

from __future__ import annotations

import importlib.machinery
import json
import sys
import types
from pathlib import Path

import transformers

from bench.llm.probe import Probe
from bench.llm.setting import LlmSetting

_TAGS = {
    "role_tag": "role",
    "content_tag": "content",
    "user_tag": "user",
    "assistant_tag": "assistant",
    "system_tag": "system",
}


def run(setting: LlmSetting, answer: str) -> None:
    stand_in = types.ModuleType("torchaudio")
    stand_in.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
    sys.modules["torchaudio"] = stand_in
    from llamafactory.train.tuner import run_exp  # noqa: PLC0415 - after the stand-in

    Probe(setting, answer).watch(transformers.LlamaForCausalLM, transformers.LlamaModel)
    chats = Path(setting.chats)
    about = {"file_name": str(chats), "formatting": "sharegpt", "columns": {"messages": "messages"}, "tags": _TAGS}
    folder = Path(setting.work) / "about"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataset_info.json").write_text(json.dumps({"chats": about}))
    given = {
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full",
        "model_name_or_path": setting.model,
        "infer_dtype": "float32",
        "dataset_dir": str(folder),
        "dataset": "chats",
        "template": "chatml",
        "cutoff_len": setting.seq_len,
        "packing": True,
        "neat_packing": True,
        "flash_attn": "sdpa",
        "disable_gradient_checkpointing": True,
        "tokenized_path": f"{setting.work}/tokenized",
        "overwrite_output_dir": not setting.resume,
        "pure_bf16": False,
    }
    common = setting.common(setting.step_rows, setting.pass_rows)
    run_exp(common | given)
