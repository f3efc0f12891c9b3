"""Train an adapter on preferences (DPO): pairs of answers, of which one is preferred.

forebay run --driver local jobs/dpo_llm.py
forebay run jobs/dpo_llm.py model=s3://models/mine data=s3://lake/preferences finetuning=qlora seq_len=4096 workers=8
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import forebay as fb
from forebay import llm
from forebay.errors import InvalidOption
from forebay.testing.data.chats import write_pairs


def job(
    model: str = "tiny",
    data: str | None = None,
    held_out: str | None = None,
    template: str | None = None,
    seq_len: int | None = None,
    on_bad_rows: str = "raise",
    finetuning: str = "lora",
    beta: float = 0.1,
    lora_r: int = 16,
    lora_alpha: float = 32,
    lora_targets: str = "all-linear",
    global_batch: int = 16,
    per_device_batch: int | None = None,
    epochs: int = 1,
    lr: float | None = None,
    schedule: str = "cosine",
    warmup: float = 0.03,
    max_grad_norm: float = 1.0,
    dtype: str = "auto",
    gradient_checkpointing: bool | None = None,
    check_memory: bool = True,
    device_memory: str | None = None,
    strategy: str = "ddp",
    workers: int = 2,
    min_workers: int | None = None,
    checkpoint_every: int = 50,
    pairs: int = 2000,
    seed: int = 0,
    cache: str = "~/.cache/forebay",
    storage: str = "runs",
    name: str | None = None,
) -> fb.Job:
    """Direct preference optimization of an adapter. The reference is the model without it.

    Args:
        model: "tiny", or the folder of a Hugging Face model that is fine-tuned already.
        data: Rows with chosen, rejected and prompt. Without it, `pairs` made-up ones are written once.
        held_out: Data that is only evaluated on.
        seq_len: Tokens of a row. A pair of answers with their prompts must fit into one, and is left out otherwise.
        finetuning: "lora", or "qlora" for an adapter beside 4-bit weights.
        beta: Weight of the reference.
        lora_targets: Names of the layers that the adapter has, such as "q_proj,v_proj", or "all-linear".
        gradient_checkpointing: Compute activations again in the backward pass. Without it, on a GPU.
        check_memory: Refuse a run that does not fit into the memory of a worker's device.
        device_memory: Memory of that device, such as "80GB". Without it, that of this machine.
    """
    if finetuning not in ("lora", "qlora"):
        raise InvalidOption(
            f"finetuning={finetuning!r} cannot train preferences: the reference is the model without its adapter. "
            "Choose 'lora' or 'qlora'.",
            finetuning=finetuning,
        )
    is_tiny = model == "tiny"
    if data is None:
        made = write_pairs(Path(storage) / "data" / "pairs", pairs=pairs, seed=seed)
        data, held_out = str(made.training), held_out or str(made.held_out)
    model = llm.pinned_model(model)
    tokenizer = llm.tokenizer(model, template=template)
    options = {"seq_len": seq_len or (256 if is_tiny else 2048), "overflow": "drop", "on_bad_rows": on_bad_rows}
    tokens = prepare(data, tokenizer, storage, options)
    llm.check_model(model, tokens, has_pairs=True)
    recipe = llm.Recipe(
        model=llm.ModelSpec(
            name=model,
            vocab_size=tokens.vocab_size,
            gradient_checkpointing=gradient_checkpointing,
            quantization="nf4" if finetuning == "qlora" else None,
        ),
        adapter=llm.Lora(r=lora_r, alpha=lora_alpha, targets=lora_targets),
        lr=lr or (4e-3 if is_tiny else 5e-6),
        schedule=schedule,
        warmup=warmup,
        max_grad_norm=max_grad_norm,
        per_device_batch=per_device_batch or (8 if is_tiny else 1),
        dtype=dtype,
        tokenizer=tokens.spec(tokenizer),
    )
    if check_memory:
        split = {"workers": min_workers or workers, "strategy": strategy}
        llm.check_memory(llm.memory_plan(recipe, seq_len=tokens.seq_len, **split), device_memory)
    transform, evaluated = llm.pair_rows(), None
    if held_out is not None:
        # The same tokenizer, also where it was trained on the data.
        other = prepare(held_out, tokens.spec(tokenizer), storage, options)
        llm.check_model(model, other, has_pairs=True)
        plan = fb.build_plan(other.prepared.manifest, shuffle=False)
        evaluated = fb.Data(plan=plan, transform=transform, global_batch=global_batch)
    return fb.Job(
        train=partial(llm.train_dpo, recipe, beta=beta),
        data=fb.Data(
            plan=fb.build_plan(tokens.prepared.manifest, seed=seed), transform=transform, global_batch=global_batch
        ),
        held_out=evaluated,
        epochs=epochs,
        workers=workers if min_workers is None else 1,
        elastic=None if min_workers is None else fb.Elastic(min_workers=min_workers, max_workers=workers),
        checkpoint_every=checkpoint_every,
        seed=seed,
        cache=fb.CacheSpec(path=cache),
        storage=storage,
        name=name,
        identity=llm.run_identity(recipe, tokens, beta=beta, **options),
        strategy=strategy,
    )


def prepare(data: str, tokenizer: llm.TokenizerSpec, storage: str, options: dict[str, object]) -> llm.PreparedTokens:
    """Pairs of `data`, prepared once."""
    source = llm.TokenSource(data, tokenizer, **options)
    return llm.prepared_tokens(fb.prepare(source, into=f"{storage}/prepared"))
