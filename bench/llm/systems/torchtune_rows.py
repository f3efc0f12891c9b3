"""Parts of torchtune: its model, its chunked loss and its mask of packed rows, in the loop of its recipes.

The rows are Forebay's. Its recipes need files of a known model family, and resume with the data's order from the start
of an epoch.

https://docs.pytorch.org/torchtune/0.6/basics/packing.html
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torchtune.models import convert_weights
from torchtune.models.llama3 import llama3
from torchtune.modules.attention_utils import packed_block_causal_mask
from torchtune.modules.loss import CEWithChunkedOutputLoss

from bench.llm.probe import Probe
from bench.llm.setting import LlmSetting
from bench.llm.sizes import SIZES

_HEADS, _WIDTH = SIZES["num_attention_heads"], SIZES["hidden_size"]
_KEY_HEADS = SIZES["num_key_value_heads"]


class TunedWeights:
    """Weights under the names of transformers, for the probe."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = convert_weights.tune_to_hf(
            self._model.state_dict(), num_heads=_HEADS, num_kv_heads=_KEY_HEADS, dim=_WIDTH
        )
        return found


def run(setting: LlmSetting, answer: str) -> None:
    probe = Probe(setting, answer)
    weights = load_file(Path(setting.model) / "model.safetensors")
    model = llama3(
        vocab_size=len(weights["model.embed_tokens.weight"]),
        num_layers=SIZES["num_hidden_layers"],
        num_heads=_HEADS,
        num_kv_heads=_KEY_HEADS,
        embed_dim=_WIDTH,
        max_seq_len=SIZES["max_position_embeddings"],
        intermediate_dim=SIZES["intermediate_size"],
        rope_base=10_000,
        norm_eps=1e-6,
    )
    model.load_state_dict(convert_weights.hf_to_tune(weights, num_heads=_HEADS, num_kv_heads=_KEY_HEADS, dim=_WIDTH))
    criterion = CEWithChunkedOutputLoss()
    model.set_num_output_chunks(criterion.num_output_chunks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=setting.rate, weight_decay=0.0)
    with np.load(setting.rows) as arrays:
        rows = {name: torch.from_numpy(arrays[name]).long() for name in arrays.files}
    probe.model = TunedWeights(model)
    for step in itertools.count():
        start = step * setting.step_rows
        targets = (rows["labels"][start : start + setting.step_rows, 1:] >= 0).sum()
        for low in range(start, start + setting.step_rows, setting.pass_rows):
            part = {name: values[low : low + setting.pass_rows] for name, values in rows.items()}
            probe.see(part["input_ids"])
            labels = torch.hstack([part["labels"][:, 1:], torch.full((setting.pass_rows, 1), -100)])
            mask = packed_block_causal_mask([lengths_of(each) for each in part["position_ids"]])
            logits = model(part["input_ids"], mask=mask, input_pos=part["position_ids"])
            (criterion(logits, labels) * (labels >= 0).sum() / targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def lengths_of(positions: torch.Tensor) -> torch.Tensor:
    """Lengths of the documents of a row, whose positions begin again at each."""
    starts = torch.nonzero(positions == 0).flatten()
    return torch.diff(torch.cat([starts, torch.tensor([len(positions)])]))
