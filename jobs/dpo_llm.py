"""Train an adapter on preferences (DPO).

forebay run --driver local jobs/dpo_llm.py
forebay run jobs/dpo_llm.py model=s3://models/mine data=s3://lake/preferences finetuning=qlora seq_len=4096 workers=8
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import forebay as fb
from forebay import llm
from forebay.testing.data.chats import write_pairs


@llm.with_options(finetuning="lora", overflow="drop")
def job(options: llm.Options, beta: float = 0.1, pairs: int = 2000) -> fb.Job:
    """Direct preference optimization of an adapter.

    The reference is the model without it.

    Its parameters are the fields of `llm.Options`, and these. A pair of answers with their prompts must fit into a row
    of `seq_len` tokens, and is left out otherwise.

    Args:
        beta: Weight of the reference.
        pairs: Number of made-up pairs, which are written once where no data is given.
    """
    if options.data is None and options.mix is None:
        made = write_pairs(Path(options.storage) / "data" / "pairs", pairs=pairs, seed=options.seed)
        options = replace(options, data=str(made.training), held_out=options.held_out or str(made.held_out))
    prepare = fb.preparation.prepare_on_ray if os.environ.get("RAY_ADDRESS") else fb.prepare
    return llm.job(options, beta=beta, prepare=prepare)
