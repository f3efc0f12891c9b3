"""Make the job of a language model from its options.

If it does not fit, copy it and change it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from forebay.data.cache.spec import CacheSpec
from forebay.data.loader.data import Data
from forebay.data.manifest.prepared import Prepared
from forebay.data.plan.mixture.mixture import Mixture
from forebay.data.plan.plan import Plan, build_plan
from forebay.data.preparation.prepare import prepare
from forebay.data.preparation.progress import tell
from forebay.data.transform.transform import Transform
from forebay.errors import InvalidOption, whole_number
from forebay.llm.adapters import Lora
from forebay.llm.context_parallel import check_exchangeable
from forebay.llm.cost.memory_check import check_memory, memory_plan
from forebay.llm.experts import check_packable, has_experts
from forebay.llm.fine_tuning import finetune
from forebay.llm.hf_folder.smollm2 import SMOLLM2, smollm2
from forebay.llm.identity import run_identity
from forebay.llm.loss import LIGER, LOSS_CHUNK, check_fused
from forebay.llm.models import TINY, Answers, Head, ModelSpec, check_model, check_weights, read_config, tiny_sizes
from forebay.llm.new_tokens import add_rows
from forebay.llm.options import Options
from forebay.llm.preferences.losses import Preferences
from forebay.llm.preferences.reference_rows import with_reference
from forebay.llm.preferences.tuning import check_recipe, prefer
from forebay.llm.recipe import Recipe, Weights
from forebay.llm.reward_head import OF_LOGITS, check_reward_head, put_reward_head
from forebay.llm.router_loss import check_router_loss
from forebay.llm.samples import HeldOutPrompt, held_out_prompts
from forebay.llm.source.hub_model import pinned_model
from forebay.llm.source.prepared_tokens import PreparedTokens, prepared_tokens
from forebay.llm.source.text_files import refuse_within
from forebay.llm.source.token_source import TokenSource
from forebay.llm.source.tokenizers import TokenizerSpec, tokenizer
from forebay.llm.token_batch import pair_rows, token_rows
from forebay.runtime.gpus import num_gpus
from forebay.training.job.elastic import Elastic
from forebay.training.job.job import Job
from forebay.training.job.resources import Resources, workers_here
from forebay.training.state.evaluations import KeepBest
from forebay.training.worker.worker import TrainFunction

PrepareSource: TypeAlias = Callable[..., Prepared]
"""`fb.prepare`, or a function with its signature that prepares elsewhere."""
TUNING_DEFAULTS: Mapping[bool, Mapping[str, Any]] = {
    True: {"seq_len": 256, "global_batch": 16, "per_device_batch": 8, "epochs": 8, "lr": 4e-3},
    False: {"seq_len": 1024, "global_batch": 64, "per_device_batch": 1, "epochs": 1},
}
"""Options that were left out, for the tiny model (True) and for others. The tiny one learns made-up conversations."""
PREFERENCE_DEFAULTS: Mapping[bool, Mapping[str, Any]] = {
    True: {"seq_len": 256, "global_batch": 16, "per_device_batch": 8, "epochs": 1, "lr": 4e-3},
    False: {"seq_len": 2048, "global_batch": 16, "per_device_batch": 1, "epochs": 1, "lr": 5e-6},
}
"""The same for a training on preferences."""


def job(options: Options, *, preferences: Preferences | None = None, prepare: PrepareSource = prepare) -> Job:
    """Make a fine-tuning job, or one on preferences.

    Prepares the token rows, once, and checks the options, the model and its memory before a worker starts.

    Args:
        options: Options of the job. Those that are None get the defaults of `TUNING_DEFAULTS`, or with `preferences` of
            `PREFERENCE_DEFAULTS`.
        preferences: Loss and reference of a training on preferences.
        prepare: Function that prepares the token rows. `fb.preparation.prepare_on_ray` does it on all nodes.

    Raises `InvalidOption` for options that can never work, and as `fb.prepare`.
    """
    options = _completed(options, preferences)
    spec = tokenizer(options.model, template=options.template, new_tokens=options.new_tokens)
    answers, into = _answers(preferences), f"{options.storage}/prepared"

    def prepared(data: str, spec: TokenizerSpec) -> PreparedTokens:
        rows = {name: value for name, value in _row_options(options).items() if value is not None}
        refuse_within(data, "storage", options.storage)
        source = TokenSource(data, spec, on_bad_rows=options.on_bad_rows, **rows)
        found = prepared_tokens(prepare(source, into=into))
        check_model(options.model, found, answers=answers, new_tokens=len(spec.new_tokens))
        return found

    parts = {data: prepared(data, spec) for data in _datasets(options)}
    tokens = next(iter(parts.values()))
    options = replace(options, loss_chunk=_loss_chunk(options))
    recipe = _recipe(options, tokens, spec, head="reward" if _is_reward(preferences) else "tokens")
    if preferences is not None:
        preferences = check_recipe(recipe, preferences)
    recipe = _balanced(options, recipe, _check_layers(options, recipe), preferences)
    _check_context(options, tokens.seq_len)
    if options.check_memory:
        _check_memory(options, recipe, tokens.seq_len, has_copy=preferences is not None and preferences.has_copy)
    rows = parts
    # The same tokenizer, also where it was trained on the data.
    held_out = None if options.held_out is None else prepared(options.held_out, tokens.spec(spec))
    # A reward model writes nothing.
    prompts = () if held_out is None or _is_reward(preferences) else held_out_prompts(held_out, options.samples)
    if preferences is not None and preferences.is_stored:
        stored = partial(with_reference, recipe=recipe, into=into, seed=options.seed, gpus=options.gpus)
        rows = {data: stored(each) for data, each in parts.items()}
        held_out = None if held_out is None else stored(held_out)
    data_of = partial(_data, options, _transform(preferences, [*rows.values(), *([held_out] if held_out else [])]))
    facts = {} if preferences is None else preferences.facts()
    return Job(
        train=_train_function(recipe, preferences, prompts),
        data=data_of(_plan(options, rows)),
        held_out=None if held_out is None else data_of(build_plan(held_out.prepared.manifest, shuffle=False)),
        identity=run_identity(recipe, parts if options.mix else tokens, **facts, **_row_options(options)),
        **_run_options(options),
    )


def _data(options: Options, transform: Transform, plan: Plan | Mixture) -> Data:
    return Data(plan=plan, transform=transform, global_batch=_filled(options.global_batch))


def _transform(preferences: Preferences | None, rows: Sequence[PreparedTokens]) -> Transform:
    if preferences is None:
        return token_rows()
    stored = [each.reference for each in rows if each.reference is not None]
    return pair_rows(max(stored, default=None))


def _train_function(recipe: Recipe, preferences: Preferences | None, prompts: Sequence[HeldOutPrompt]) -> TrainFunction:
    if preferences is None:
        return partial(finetune, recipe, prompts=prompts)
    return partial(prefer, recipe, preferences=preferences, prompts=prompts)


def _answers(preferences: Preferences | None) -> Answers:
    """Answers of a row that the job needs."""
    if preferences is None:
        return "one"
    return "labels" if preferences.loss == "kto" else "pairs"


def _is_reward(preferences: Preferences | None) -> bool:
    return preferences is not None and preferences.loss == "reward"


def _check_layers(options: Options, recipe: Recipe) -> Any:
    """Check the files of the model, and that its adapter and its head fit.

    Returns the model without memory. Raises `InvalidOption`.
    """
    whole = check_weights(recipe.model)
    if recipe.model.new_tokens:
        add_rows(whole, recipe.model.vocab_size, recipe.model.new_tokens)
    if recipe.context_parallel > 1:
        check_exchangeable(whole, recipe.context_parallel)
    if recipe.model.head == "reward":
        name = recipe.model.name
        config = {"model_type": "llama", **tiny_sizes(recipe.model.vocab_size)} if name == TINY else read_config(name)
        check_reward_head(whole, config)
        put_reward_head(whole)
    if recipe.adapter is not None:
        _check_targets(options, recipe, recipe.adapter_of(whole), whole)
    if recipe.loss_kernel == LIGER:
        check_fused(whole)
    return whole


def _completed(options: Options, preferences: Preferences | None) -> Options:
    """Fill in defaults, and pin the model.

    Raises `InvalidOption` for a contradiction.
    """
    if options.data is None and not options.mix:
        raise InvalidOption("there is no data. Give data=, or mix= with several datasets.")
    if options.min_workers is not None:
        whole_number("min_workers", options.min_workers, least=1)
    asked = [name for name in ("eval_every", "patience") if getattr(options, name) is not None]
    if asked and options.held_out is None:
        raise InvalidOption(
            f"{asked[0]}={getattr(options, asked[0])} needs an evaluation, and there is no held-out data. Give "
            "held_out=, or leave it out."
        )
    _check_adapter(options)
    if options.loss_kernel == LIGER and not (num_gpus() if options.gpus is None else options.gpus):
        raise InvalidOption(
            "loss_kernel='liger' runs on GPUs only, and this machine has none. Set gpus=1 if the workers' machines "
            "have some, or loss_kernel='torch'.",
            option="loss_kernel",
        )
    if preferences is not None:
        preferences.resolved(has_adapter=options.finetuning != "full")
        _check_for_preferences(options, preferences)
    defaults = TUNING_DEFAULTS if preferences is None else PREFERENCE_DEFAULTS
    model = smollm2(f"{options.storage}/models") if options.model == SMOLLM2 else options.model
    return replace(
        options.with_defaults(defaults[model == TINY]),
        model=pinned_model(model),
        workers=workers_here(options.gpus) if options.workers is None else options.workers,
    )


def _check_adapter(options: Options) -> None:
    """Raise `InvalidOption` for an option of an adapter that there is not."""
    given = [name for name in options.changed() if name in ("modules_to_save", "rslora", "dora") or "lora_" in name]
    if given and options.finetuning == "full":
        raise InvalidOption(
            f"{given[0]}={getattr(options, given[0])} is of an adapter, and finetuning='full' trains all of the model. "
            "Leave it out, or set finetuning=lora.",
            option=given[0],
        )


def _check_for_preferences(options: Options, preferences: Preferences) -> None:
    """Raise `InvalidOption` for an option that cannot apply."""
    if options.loss_kernel != "torch":
        raise InvalidOption(
            f"loss_kernel={options.loss_kernel!r} is for fine-tunings: preferences need the loss of each target. Leave "
            "it out.",
            option="loss_kernel",
        )
    if options.context_parallel > 1:
        raise InvalidOption(
            f"context_parallel={options.context_parallel} is for fine-tunings: preferences need whole answers on a "
            "rank. Leave it out.",
            option="context_parallel",
        )
    if preferences.loss == "kto" and options.reduction == "exact":
        raise InvalidOption(
            "reduction='exact': loss='kto' compares with a mean over the global batch, whose rounding depends on the "
            "number of workers. Leave reduction out.",
            option="reduction",
        )
    if preferences.loss == "reward" and options.loss_chunk != LOSS_CHUNK:
        raise InvalidOption(
            f"loss_chunk={options.loss_chunk}: loss='reward' computes no logits. Leave loss_chunk out.",
            option="loss_chunk",
        )


def _loss_chunk(options: Options) -> int:
    """Chunk of the loss: 0 for a model that changes its logits behind the last layer.

    Raises `InvalidOption` for another chunk that was asked for.
    """
    config = {} if options.model == TINY else read_config(options.model)
    changed = [name for name in OF_LOGITS if config.get(name) not in (None, 0, 1)]
    if not changed or not options.loss_chunk:
        return options.loss_chunk
    if options.loss_chunk != LOSS_CHUNK:
        raise InvalidOption(
            f"loss_chunk={options.loss_chunk}: the model {options.model} changes its logits behind the last layer "
            f"({changed[0]}={config[changed[0]]}), so they cannot be computed in chunks. Set loss_chunk=0.",
            loss_chunk=options.loss_chunk,
        )
    tell(f"loss_chunk=0: the model changes its logits behind the last layer ({changed[0]}={config[changed[0]]})")
    return 0


def _balanced(options: Options, recipe: Recipe, model: Any, preferences: Preferences | None) -> Recipe:
    """Recipe with the weight of the router loss. Raises as `check_router_loss`."""
    given = options.router_aux_loss_coef
    if given and preferences is not None:
        raise InvalidOption(
            f"router_aux_loss_coef={given}: a training on preferences has no router loss. Leave it out, or fine-tune."
        )
    is_usual = preferences is None and getattr(model.config, "output_router_logits", False)
    weight = (getattr(model.config, "router_aux_loss_coef", 0.0) if is_usual else 0.0) if given is None else given
    check_router_loss(getattr(model, "get_base_model", lambda: model)(), weight)
    return replace(recipe, router_aux_loss_coef=weight)


def _check_targets(options: Options, recipe: Recipe, adapter: Lora, whole: Any) -> None:
    """Add the adapter to a model without memory.

    Tells what of a mixture of experts is trained. Raises `InvalidOption` for targets that match no layer, or that
    cannot be adapted.
    """
    is_quantized = recipe.model.quantization is not None
    if is_quantized:
        check_packable(whole)
    targets = adapter.targets_in(whole, is_quantized=is_quantized)
    if targets.weights and options.strategy == "zero3" and _filled(options.workers) > 1:
        raise InvalidOption(
            f"lora_targets={options.lora_targets}: peft adds the adapter of {targets.weights[0]!r} to the whole weight,"
            " of which a rank has a part with strategy='zero3'. Choose 'fsdp2', 'zero2' or 'ddp'."
        )
    if has_experts(whole) and not isinstance(targets.layers, str):
        others = "" if targets.weights else " Experts and routers stay as they are: lora_targets=all-linear,experts"
        tell(f"adapter of {', '.join((*targets.layers, *targets.weights))}.{others}")
    adapter.add_to(whole)


def _check_context(options: Options, seq_len: int) -> None:
    """Raise `InvalidOption` for rows and workers that `context_parallel` cannot divide."""
    ranks, most = options.context_parallel, _filled(options.workers)
    least = most if options.min_workers is None else options.min_workers
    name = f"context_parallel={ranks}"
    if ranks == 1:
        return
    if options.strategy not in ("ddp", "fsdp2") or options.reduction != "mean":
        raise InvalidOption(
            f"{name} needs strategy='ddp' or 'fsdp2' and reduction='mean', and they are {options.strategy!r} and "
            f"{options.reduction!r}. Set them, or leave it out.",
            option="context_parallel",
        )
    if seq_len % ranks:
        raise InvalidOption(f"{name} cannot divide rows of seq_len={seq_len} tokens. Set seq_len to a multiple of it.")
    if least < ranks or most % ranks:
        named = f"workers={most}" if least == most else f"min_workers={least} and workers={most}"
        raise InvalidOption(
            f"{name} cannot divide {named}. Set workers to a multiple of it, and min_workers to {ranks} or more.",
            option="context_parallel",
        )


def _filled(value: int | None) -> int:
    assert value is not None, "the defaults have it"
    return value


def _datasets(options: Options) -> list[str]:
    return [*options.mix] if options.mix else [str(options.data)]


def _row_options(options: Options) -> dict[str, Any]:
    names = ("seq_len", "packing", "overflow", "truncate", "train_on", "columns")
    return {name: getattr(options, name) for name in names}


def _plan(options: Options, parts: Mapping[str, PreparedTokens]) -> Plan | Mixture:
    """Plan of one dataset, or a mixture of several.

    Parts of a mixture are named by the last parts of their paths.
    """
    if not options.mix:
        return build_plan(next(iter(parts.values())).prepared.manifest, seed=options.seed)
    names = {data: Path(data).name.partition(".")[0] for data in parts}
    if len(set(names.values())) < len(parts):
        raise InvalidOption(f"mix={options.mix} has data of equal names. Give folders or files whose names differ.")
    if any(each.trained_tokenizer for each in parts.values()):
        raise InvalidOption("mix= needs a model with a tokenizer: model='tiny' trains one on one dataset.")
    plans = {names[data]: build_plan(each.prepared.manifest, seed=options.seed) for data, each in parts.items()}
    return Mixture(plans, {names[data]: weight for data, weight in options.mix.items()})


def _recipe(options: Options, tokens: PreparedTokens, spec: TokenizerSpec, *, head: Head) -> Recipe:
    model = ModelSpec(
        name=options.model,
        vocab_size=tokens.vocab_size,
        attn=options.attn,
        gradient_checkpointing=options.gradient_checkpointing,
        quantization="nf4" if options.finetuning == "qlora" else None,
        head=head,
        compile=options.compile,
        new_tokens=len(spec.new_tokens),
    )
    adapter = Lora(
        r=options.lora_r,
        alpha=options.lora_alpha,
        dropout=options.lora_dropout,
        targets=options.lora_targets,
        modules_to_save=options.modules_to_save,
        rslora=options.rslora,
        dora=options.dora,
    )
    return Recipe(
        model=model,
        adapter=None if options.finetuning == "full" else adapter,
        lr=options.lr,
        schedule=options.schedule,
        warmup=options.warmup,
        weight_decay=options.weight_decay,
        max_grad_norm=options.max_grad_norm,
        per_device_batch=_filled(options.per_device_batch),
        dtype=options.dtype,
        weights=_weights(options),
        algorithm=options.optimizer,
        tokenizer=tokens.spec(spec),
        loss_chunk=options.loss_chunk,
        context_parallel=options.context_parallel,
        loss_kernel=options.loss_kernel,
    )


def _weights(options: Options) -> Weights:
    """Type of the weights. DeepSpeed holds one type.

    Raises `InvalidOption` for weights or an optimizer that a strategy does not have.
    """
    if options.optimizer != "adamw" and options.strategy != "ddp":
        raise InvalidOption(
            f"optimizer={options.optimizer!r} needs strategy='ddp', which holds whole weights, and strategy is "
            f"{options.strategy!r}. Set one of them."
        )
    if not options.strategy.startswith("zero"):
        return options.weights
    if options.weights == "bf16":
        raise InvalidOption(
            f"weights='bf16' needs strategy='ddp' or 'fsdp2', and strategy is {options.strategy!r}: DeepSpeed holds "
            "float32 here. Set one of them."
        )
    return "float32"


def _check_memory(options: Options, recipe: Recipe, seq_len: int, *, has_copy: bool) -> None:
    plan = memory_plan(
        recipe,
        workers=options.min_workers or _filled(options.workers),
        gpus=options.gpus,
        seq_len=seq_len,
        strategy=options.strategy,
        offload=options.offload,
    )
    if has_copy:
        plan = replace(plan, reference="copy")
    check_memory(replace(plan, global_batch=options.global_batch), options.device_memory, gpus=options.gpus)


def _run_options(options: Options) -> dict[str, Any]:
    """Options of the run, as `fb.Job` takes them."""
    least, most = options.min_workers, _filled(options.workers)
    length = ("epochs", "max_steps", "eval_every", "checkpoint_every")
    same = (*length, "seed", "storage", "name", "strategy", "offload", "reduction")
    return {
        "workers": most if least is None else 1,
        "elastic": None if least is None else Elastic(min_workers=least, max_workers=most),
        "resources": Resources(gpus=options.gpus),
        "cache": CacheSpec(path=options.cache),
        "keep_best": None if options.patience is None else KeepBest(patience=options.patience),
        **{name: getattr(options, name) for name in same},
    }
