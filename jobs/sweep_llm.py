"""Sweep the language model job of finetune_llm.py: its learning rate, the rank of its adapter, and its data mixture.

forebay run jobs/sweep_llm.py trials=8 deadline=10m
forebay run jobs/sweep_llm.py model=/models/Llama-3.1-8B words=s3://lake/chats numbers=s3://lake/sums held_out=s3://lake/new

All trials read the same token rows and the same files of the base model. They are prepared before the first trial.
"""

from __future__ import annotations

import json
from pathlib import Path

from finetune_llm import job as finetune
from ray import tune

import forebay as fb
from forebay import llm
from forebay.errors import InvalidOption
from forebay.testing.data.chats import unique_chats


def mixed(
    model: str,
    words: str,
    numbers: str,
    held_out: str,
    lr: float = 2e-3,
    lora_r: int = 8,
    lora_targets: str = "all-linear",
    numbers_share: float = 0.5,
    epochs: int = 2,
    seq_len: int = 256,
    global_batch: int = 16,
    per_device_batch: int = 8,
    workers: int = 1,
    checkpoint_every: int = 50,
    seed: int = 0,
    cache: str = "~/.cache/forebay",
    storage: str = "runs",
) -> fb.Job:
    """Job of finetune_llm.py: an adapter, on a mixture of two datasets. It has 1 to `workers` workers."""
    return finetune(
        model=model,
        mix={words: 1 - numbers_share, numbers: numbers_share},
        held_out=held_out,
        finetuning="lora",
        lr=lr,
        lora_r=lora_r,
        lora_targets=lora_targets,
        epochs=epochs,
        seq_len=seq_len,
        global_batch=global_batch,
        per_device_batch=per_device_batch,
        workers=workers,
        min_workers=1,
        checkpoint_every=checkpoint_every,
        seed=seed,
        cache=cache,
        storage=storage,
    )


def sweep(
    trials: int = 8,
    deadline: fb.Seconds | None = None,
    model: str | None = None,
    words: str | None = None,
    numbers: str | None = None,
    held_out: str | None = None,
    chats: int = 2000,
    base_epochs: int = 3,
    epochs: int = 2,
    seq_len: int = 256,
    global_batch: int = 16,
    per_device_batch: int = 8,
    workers: int = 1,
    lora_targets: str = "all-linear",
    at_once: int | None = None,
    driver: str = "ray",
    cache: str = "~/.cache/forebay",
    storage: str = "runs",
    name: str | None = None,
    seed: int = 0,
) -> fb.Sweep:
    """Search learning rate, rank and mixture with the lowest loss on held-out conversations.

    Args:
        deadline: Time until all trials end. Workers move to the best trials meanwhile.
        model: Folder of a model, or its name on the Hugging Face Hub. Without it, a tiny one is tuned on the made-up
            words for `base_epochs`, and exported.
        words: First dataset of the mixture. Without data, conversations are made up.
        numbers: Second dataset, which the base model does not know.
        held_out: Data that is only evaluated on.
        workers: Largest number of workers per trial.
        lora_targets: Names of the layers that adapters have, such as "q_proj,v_proj", or "all-linear".
        at_once: Largest number of trials that train at a time.
    """
    given = (words, numbers, held_out)
    if any(given) and not (all(given) and model):
        raise InvalidOption("Give model=, words=, numbers= and held_out= together, or none of them.")
    if not (words and numbers and held_out):
        words, numbers, held_out = made_up(Path(storage) / "data" / f"mixture-{chats}-{seed}", chats, seed)
    rows = {"seq_len": seq_len, "global_batch": global_batch, "per_device_batch": per_device_batch, "seed": seed}
    places = {"cache": cache, "storage": storage}
    if model is None:
        model = tuned_base(words, epochs=base_epochs, name=f"base-{chats}-{base_epochs}-{seed}", **rows, **places)
    model = llm.pinned_model(model)  # the same commit for all trials
    fixed = {"model": model, "words": words, "numbers": numbers, "held_out": held_out, "epochs": epochs}
    fixed |= {"workers": workers, "lora_targets": lora_targets, "checkpoint_every": 20, **rows, **places}
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
        storage=storage,
        seed=seed,
    )


def made_up(folder: Path, chats: int, seed: int) -> tuple[str, str, str]:
    """Files of conversations without sums, with sums, and held-out ones of both kinds. Written once."""
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


def tuned_base(data: str, *, storage: str, name: str, **options: object) -> str:
    """Folder of a tiny model that was tuned on `data`. A run that is finished is not repeated."""
    fb.run(finetune(data=data, workers=1, storage=storage, name=name, **options), driver="local")
    return llm.export(name, f"{storage}/models/{name}", storage=storage).folder
