"""Sweep a language model job.

Its learning rate, the rank of its adapter, and its data mixture:

forebay run jobs/sweep_llm.py trials=8 deadline=10m
forebay run jobs/sweep_llm.py model=/models/Llama-3.1-8B words=s3://lake/chats numbers=s3://lake/sums held_out=s3://lake/new

All trials read the same token rows and the same files of the base model. They are prepared before the first trial.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from ray import tune

import forebay as fb
from forebay import llm
from forebay.errors import InvalidOption
from forebay.testing.data.chats import unique_chats

PREPARE = fb.preparation.prepare_on_ray if os.environ.get("RAY_ADDRESS") else fb.prepare
ROWS = {"seq_len": 256, "global_batch": 16, "per_device_batch": 8}


@llm.with_options()
def mixed(options: llm.Options, words: str, numbers: str, numbers_share: float = 0.5) -> fb.Job:
    """Training on a mixture of two datasets."""
    options = replace(options, mix={words: 1 - numbers_share, numbers: numbers_share})
    return llm.job(options, prepare=PREPARE)


@llm.with_options(finetuning="lora", epochs=2, workers=1, min_workers=1, checkpoint_every=20, **ROWS)
def sweep(
    options: llm.Options,
    trials: int = 8,
    deadline: fb.Seconds | None = None,
    words: str | None = None,
    numbers: str | None = None,
    chats: int = 2000,
    base_epochs: int = 3,
    at_once: int | None = None,
    driver: str = "ray",
) -> fb.Sweep:
    """Search learning rate, rank and mixture.

    For the lowest loss on held-out conversations.

    Its parameters are the fields of `llm.Options`, which all trials share, and these. With model=tiny, a tiny one is
    tuned on the made-up words for `base_epochs`, and exported.

    Args:
        deadline: Time until all trials end. Workers move to the best trials meanwhile.
        words: First dataset of the mixture. Without data, conversations are made up.
        numbers: Second dataset, which the base model does not know.
        at_once: Largest number of trials that train at a time.
    """
    given = (words, numbers, options.held_out)
    if any(given) and not (all(given) and options.model != "tiny"):
        raise InvalidOption("Give model=, words=, numbers= and held_out= together, or none of them.")
    if not (words and numbers):
        made = Path(options.storage) / "data" / f"mixture-{chats}-{options.seed}"
        words, numbers, held_out = made_up(made, chats, options.seed)
        options = replace(options, held_out=held_out)
    if options.model == "tiny":
        base = tuned_base(options, words, epochs=base_epochs, name=f"base-{chats}-{base_epochs}-{options.seed}")
        options = replace(options, model=base)
    name, options = options.name, replace(options, model=llm.pinned_model(options.model), name=None)
    # Also the commit of a model of the Hub is the same for all trials.
    fixed = options.changed() | {"words": words, "numbers": numbers}
    mixed(**fixed)  # prepares the token rows, which all trials then find
    return fb.Sweep(
        mixed,
        {"lr": tune.loguniform(3e-4, 3e-2), "lora_r": [4, 8, 16], "numbers_share": (0.2, 0.8)},
        metric="validation_loss",
        mode="min",
        num_trials=trials,
        fixed=fixed,
        driver=driver,
        scheduler=None if deadline is None else fb.DeadlineScheduler(deadline),
        deadline_s=deadline,
        max_concurrent=at_once,
        name=name,
        storage=options.storage,
        seed=options.seed,
    )


def made_up(folder: Path, chats: int, seed: int) -> tuple[str, str, str]:
    """Write made-up conversations in three files, once.

    Without sums, with sums, and held-out ones of both kinds.
    """
    names = [folder / f"{kind}.jsonl" for kind in ("words", "numbers", "held-out")]
    if not all(name.exists() for name in names):
        folder.mkdir(parents=True, exist_ok=True)
        found = [json.dumps({"messages": each}) + "\n" for each in unique_chats(chats + max(chats // 10, 2), seed)]
        training = found[:chats]
        kinds = ([], [], found[chats:])
        for line in training:
            kinds["Add (" in line].append(line)
        for path, lines in zip(names, kinds, strict=True):
            draft = path.with_suffix(".draft")
            draft.write_text("".join(lines))
            draft.rename(path)
    return str(names[0]), str(names[1]), str(names[2])


def tuned_base(options: llm.Options, data: str, *, epochs: int, name: str) -> str:
    """Tune a tiny model on `data`, and return its folder.

    A finished run is not repeated.
    """
    folders = {"cache": options.cache, "storage": options.storage, "seed": options.seed}
    rows = {each: getattr(options, each) for each in ROWS}
    base = llm.Options(data=data, workers=1, epochs=epochs, name=name, **rows, **folders)
    fb.run(llm.job(base, prepare=PREPARE), driver="local")
    return llm.export(name, f"{options.storage}/models/{name}", storage=options.storage).folder
