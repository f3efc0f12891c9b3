"""Train a language model on preferences, or a reward model.

On made-up answers without a network, or your own model on your own pairs:

forebay run --driver local jobs/prefer_llm.py
forebay run jobs/prefer_llm.py model=s3://models/mine data=s3://lake/preferences loss=ipo finetuning=qlora workers=8
forebay run jobs/prefer_llm.py model=s3://models/mine data=s3://lake/preferences loss=reward finetuning=full
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

import forebay as fb
from forebay import llm
from forebay.testing.data.chats import write_labels, write_pairs


@llm.with_options(finetuning="lora", overflow="drop")
def job(
    options: llm.Options,
    loss: Literal["dpo", "dpo_norm", "ipo", "simpo", "kto", "reward"] = "dpo",
    reference: Literal["auto", "adapter", "copy", "stored"] = "auto",
    beta: float | None = None,
    gamma: float | None = None,
    desirable_weight: float | None = None,
    undesirable_weight: float | None = None,
    pairs: int = 2000,
) -> fb.Job:
    """Training on pairs of answers, or on answers with labels.

    Its parameters are the fields of `llm.Options`, and these. A pair of answers with their prompts must fit into a row
    of `seq_len` tokens, and is left out otherwise.

    Args:
        loss: "dpo", "dpo_norm", "ipo", "simpo" or "reward" on pairs, "kto" on answers with labels.
        reference: The model without its "adapter", a frozen "copy", or "stored" log-probabilities. "auto": the first
            that works.
        beta: Weight of the reference. None: the default of the loss.
        gamma: Margin of "simpo".
        desirable_weight: Weight of the desired answers of "kto".
        undesirable_weight: Weight of the other answers of "kto".
        pairs: Number of made-up pairs, which are written once where no data is given.
    """
    preferences = llm.Preferences(
        loss=loss,
        reference=reference,
        beta=beta,
        gamma=gamma,
        desirable_weight=desirable_weight,
        undesirable_weight=undesirable_weight,
    )
    if options.data is None and options.mix is None:
        write = write_labels if loss == "kto" else write_pairs
        made = write(Path(options.storage) / "data" / "pairs", pairs=pairs, seed=options.seed)
        options = replace(options, data=str(made.training), held_out=options.held_out or str(made.held_out))
    prepare = fb.preparation.prepare_on_ray if os.environ.get("RAY_ADDRESS") else fb.prepare
    return llm.job(options, preferences=preferences, prepare=prepare)
