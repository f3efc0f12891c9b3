"""Fine-tune a language model.

On made-up conversations without a network, or your own model on your own text:

forebay run --driver local jobs/finetune_llm.py
forebay run jobs/finetune_llm.py model=/models/Llama-3.1-8B data=s3://lake/chats finetuning=lora seq_len=8192 workers=8
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import forebay as fb
from forebay import llm
from forebay.testing.data.chats import write_chats


@llm.with_options()
def job(options: llm.Options, chats: int = 6000) -> fb.Job:
    """Next-token training of a causal language model.

    Its parameters are the fields of `llm.Options`, and these.

    Args:
        chats: Number of made-up conversations, which are written once where neither `data` nor `mix` is given.
    """
    if options.data is None and options.mix is None:
        made = write_chats(Path(options.storage) / "data" / "chats", chats=chats, seed=options.seed)
        options = replace(options, data=str(made.training), held_out=options.held_out or str(made.held_out))
    prepare = fb.preparation.prepare_on_ray if os.environ.get("RAY_ADDRESS") else fb.prepare
    return llm.job(options, prepare=prepare)
