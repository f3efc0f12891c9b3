"""Memory of a fine-tuning, estimated before a worker starts.

Bytes per rank, part by part.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import nn

from forebay.errors import InvalidOption, whole_number
from forebay.llm.adapters import ALL_LINEAR, Lora
from forebay.llm.cost.activations import PassOptions, Peak, count_pass
from forebay.llm.cost.known_models import TINY_VOCABULARY, model_config
from forebay.llm.cost.skeleton import decoder_layers, num_parameters, over_layers, skeleton, with_layers
from forebay.llm.experts import expert_weights, has_experts
from forebay.llm.loss import LIGER, LossKernel
from forebay.llm.models import Head
from forebay.llm.optimizers import BLOCK, OptimizerName
from forebay.llm.options import Options, Tuning, with_options
from forebay.llm.recipe import Weights
from forebay.training.strategies.choice import Offload, StrategyName

Precision: TypeAlias = Literal["bf16", "fp32"]
HeldReference: TypeAlias = Literal["none", "adapter", "copy", "stored"]
_CHOICES = {
    "strategy": StrategyName,
    "offload": Offload,
    "finetuning": Tuning,
    "dtype": Precision,
    "stored": Precision,
    "weights": Weights,
    "optimizer": OptimizerName,
    "reference": HeldReference,
    "head": Head,
    "loss_kernel": LossKernel,
}

FLOAT, HALF = 4, 2
MOMENTS = 2 * FLOAT
MOMENTS_IN_8_BITS = 2 * (1 + 4 / 256)
"""A byte, and a scale of 32 bits for each block of 256."""
NF4_BYTES = 0.5 + 4 / 64
"""Bytes of a weight in NF4: 4 bits, and a scale of 32 bits for each block of 64."""
ROUNDING = 0.02
"""Share of all others that the allocator's blocks are larger than what is asked for, at most."""
ROUNDING_OF_EXPERTS = 0.04
"""The same for experts in 4 bits: on a CPU, 1.3 % more than what is counted was taken."""
WORKSPACE = 64 << 20
"""Bytes that cuBLAS and cuBLASLt take of a GPU's memory for themselves (32 MiB each on an H200)."""
BUCKET = 50_000_000
"""Elements of DeepSpeed's buffers, as the strategies set them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Options that decide the memory of a fine-tuning.

    They have the names of `llm.Options`.

    Attributes:
        model: "tiny", a known model such as "Llama-2-70B", or a model's folder.
        workers: Number of ranks.
        dtype: Type of the computation.
        weights: Type of the weights, as in `Recipe`.
        optimizer: Optimizer, as in `Options`.
        stored: Type of the weights and gradients that DeepSpeed holds. Forebay's strategies hold float32; with "bf16"
            these are the figures of DeepSpeed's own bf16 mode.
        loss_chunk: Positions whose logits exist at a time. 0: all rows of a pass.
        global_batch: Rows of a step. None: several passes, whose gradients are added up.
        on_gpu: Whether it trains on GPUs, or on CPUs.
        vocab_size: Entries of the tokenizer, for the tiny model and for new tokens.
        reference: "copy" for preferences beside a frozen copy of the model. Others take no memory.
        modules_to_save: Names of layers that are trained whole beside an adapter.
        dora: Whether the adapter is DoRA.
        context_parallel: Ranks that compute a row together.
        head: Head of the model, as in `ModelSpec`.
        new_tokens: Number of the tokenizer's entries that are new to the model, as in `ModelSpec`.
        loss_kernel: Kernel of the loss, as in `Options`.
        compile: Whether layers are compiled. With checkpointing, and in 4 bits, they count as if they were not.
    """

    model: str
    workers: int = 1
    strategy: StrategyName = "ddp"
    offload: Offload = "none"
    finetuning: Tuning = "full"
    lora_r: int = 16
    lora_targets: str = ALL_LINEAR
    seq_len: int = 1024
    per_device_batch: int = 1
    gradient_checkpointing: bool = True
    attn: str = "auto"
    dtype: Precision = "bf16"
    weights: Weights = "auto"
    optimizer: OptimizerName = "adamw"
    stored: Precision = "fp32"
    loss_chunk: int = 1024
    global_batch: int | None = None
    on_gpu: bool = True
    vocab_size: int = TINY_VOCABULARY
    reference: HeldReference = "none"
    modules_to_save: str = ""
    dora: bool = False
    context_parallel: int = 1
    head: Head = "tokens"
    new_tokens: int = 0
    loss_kernel: LossKernel = "torch"
    compile: bool = False

    def __post_init__(self) -> None:
        for option in ("workers", "lora_r", "seq_len", "per_device_batch", "context_parallel"):
            whole_number(option, getattr(self, option), least=1)
        whole_number("loss_chunk", self.loss_chunk, least=0)
        for option, choices in _CHOICES.items():
            if getattr(self, option) not in get_args(choices):
                known = ", ".join(map(repr, get_args(choices)))
                raise InvalidOption(f"{option}={getattr(self, option)!r} is unknown. Choose one of {known}.")
        if self.workers < self.context_parallel:
            raise InvalidOption(
                f"context_parallel={self.context_parallel} needs as many workers, and there are {self.workers}.",
                option="context_parallel",
            )
        if self.offload != "none" and not self.strategy.startswith("zero"):
            raise InvalidOption(
                f"offload={self.offload!r} needs strategy='zero1', 'zero2' or 'zero3', and strategy is "
                f"{self.strategy!r}. Set one of them, or offload='none'."
            )

    @property
    def trained_bytes(self) -> int:
        """Bytes of a trained weight."""
        return HALF if self.weights == "bf16" and self.finetuning == "full" else FLOAT

    @property
    def pass_bytes(self) -> int:
        """Bytes of a trained weight and its gradient in a pass, also in DeepSpeed's own bf16 mode."""
        return HALF if self.stored == "bf16" and self.strategy.startswith("zero") else self.trained_bytes

    @property
    def frozen_bytes(self) -> int:
        """Bytes of a frozen weight that is not quantized."""
        is_zero = self.strategy.startswith("zero")
        return (
            HALF
            if self.weights == "bf16" or (self.weights == "auto" and self.dtype == "bf16" and not is_zero)
            else FLOAT
        )

    @property
    def accumulates(self) -> bool:
        """Whether a step has several passes."""
        if self.global_batch is None:
            return True
        return self.global_batch * self.context_parallel > self.workers * self.per_device_batch

    @property
    def own_tokens(self) -> int:
        """Tokens of a row that a rank computes."""
        return -(-self.seq_len // self.context_parallel)

    @property
    def adapter(self) -> Lora | None:
        """Adapter that is trained, or None."""
        if self.finetuning == "full":
            return None
        whole = self.modules_to_save
        return Lora(r=self.lora_r, targets=self.lora_targets, modules_to_save=whole, dora=self.dora)


@with_options(workers=1)
def plan_of(
    options: Options,
    stored: Precision = "fp32",
    vocab_size: int = TINY_VOCABULARY,
    reference: HeldReference = "none",
) -> MemoryPlan:
    """Memory plan of a job on GPUs.

    Options that do not change its memory are ignored.
    """
    defaults = {"seq_len": 1024, "per_device_batch": 1, "gradient_checkpointing": True}
    known = asdict(options.with_defaults(defaults))
    # New tokens are names in the options, and a number here: a tokenizer would be needed to count them.
    names = {each.name for each in fields(MemoryPlan)} & known.keys() - {"new_tokens"}
    plan = {name: known[name] for name in names}
    dtype: Precision = "bf16" if options.dtype == "auto" else options.dtype
    more = {"dtype": dtype, "stored": stored, "vocab_size": vocab_size, "reference": reference}
    return MemoryPlan(**plan | more)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes of one rank, on device and host.

    Attributes:
        parameters: Number of the model's parameters, with its adapter.
        trained: Number of those that are trained.
        device: Bytes on the device by part, at the moment of a step that has most: "weights", "gradients", "optimizer",
            "buffers", and "activations": these with logits, copies, and what operators need for a moment.
        host: Bytes in main memory.
        states: Bytes of weights, gradients and optimizer states on the device, between a pass and the optimizer's step.
    """

    parameters: int
    trained: int
    device: dict[str, int]
    host: int
    states: int

    @property
    def total(self) -> int:
        """Bytes on the device."""
        return sum(self.device.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """Parameter counts of a model.

    All, trained, of one layer, outside of layers, of the linear layers that can be NF4, of the largest trained one, and
    of the output layer.
    """

    total: int
    trained: int
    layer: int
    outside: int
    linear: int
    largest: int
    has_experts: bool
    output: int

    @property
    def frozen(self) -> int:
        """Parameters that are not trained."""
        return self.total - self.trained


def estimate_memory(plan: MemoryPlan) -> MemoryEstimate:
    """Estimate the most bytes of a rank in a step.

    Weights, gradients and optimizer by formula. A pass is counted operator by operator.

    Not in it: the CUDA context and NCCL (1 to 2 GB), and gaps of the allocator. Raises `InvalidOption` for a model that
    cannot be read.
    """
    sizes = _sizes(plan.model, plan.vocab_size, plan.head, plan.new_tokens, plan.adapter)
    weights, gradients, optimizer = _states(plan, sizes)
    weights += _reference(plan, sizes) if plan.reference == "copy" else 0
    held = 0 if plan.offload == "optimizer" else optimizer
    # A strategy that splits gradients does so as they come. `peak.gradients` are of a whole model.
    split = gradients / max(plan.pass_bytes * sizes.trained, 1)
    others = _of_attention(plan)
    # Liger computes the gradient of the output layer in the forward pass, and holds it until the backward pass.
    others += 2 * FLOAT * sizes.output if plan.loss_kernel == LIGER else 0
    moments = [(round(peak.gradients * split), peak.others + others) for peak in _passes(plan)]
    moments.append((gradients, _of_optimizer(plan, sizes)))
    alive, others = max(moments, key=sum)
    own = _buffers(plan, sizes) + (WORKSPACE if plan.on_gpu else 0)
    rounding = ROUNDING_OF_EXPERTS if plan.finetuning == "qlora" and sizes.has_experts else ROUNDING
    device = {
        "weights": weights,
        "gradients": alive,
        "optimizer": held,
        "buffers": own + round(rounding * (weights + alive + held + own + others)),
        "activations": others,
    }
    return MemoryEstimate(
        parameters=sizes.total,
        trained=sizes.trained,
        device=device,
        host=optimizer - held,
        states=weights + gradients + held,
    )


def _reference(plan: MemoryPlan, sizes: ModelSizes) -> int:
    """Bytes of a frozen copy: split under fsdp2, and whole otherwise."""
    weights = FLOAT * sizes.total
    if plan.finetuning == "qlora":
        weights = FLOAT * (sizes.total - sizes.linear) + round(NF4_BYTES * sizes.linear)
    if plan.strategy != "fsdp2" or plan.workers == 1:
        return weights
    return -(-weights // plan.workers) + FLOAT * (2 * sizes.layer + sizes.outside)


def _states(plan: MemoryPlan, sizes: ModelSizes) -> tuple[int, int, int]:
    """Bytes of weights, gradients and optimizer of a rank."""
    is_zero = plan.strategy.startswith("zero") and (plan.workers > 1 or plan.offload != "none")
    is_half = is_zero and plan.stored == "bf16"
    held, held_frozen = (HALF, HALF) if is_half else (plan.trained_bytes, plan.frozen_bytes)
    # DeepSpeed keeps a float32 copy of what the optimizer changes, also beside weights in float32.
    per_trained = (MOMENTS if plan.optimizer == "adamw" else MOMENTS_IN_8_BITS) + (FLOAT if is_zero else 0)
    frozen = held_frozen * sizes.frozen
    if plan.finetuning == "qlora":
        frozen = held_frozen * (sizes.frozen - sizes.linear) + round(NF4_BYTES * sizes.linear)
    weights, gradients = held * sizes.trained + frozen, held * sizes.trained
    optimizer = round(per_trained * sizes.trained)
    # Weights, gradients and optimizer: which of them each strategy splits over ranks.
    split = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp2": 3}[plan.strategy]
    shares = [plan.workers if split >= least else 1 for least in (3, 2, 1)]
    return tuple(-(-amount // share) for amount, share in zip((weights, gradients, optimizer), shares, strict=True))  # type: ignore[return-value]


def _buffers(plan: MemoryPlan, sizes: ModelSizes) -> int:
    """Bytes of gathered weights and of gradients on their way."""
    if plan.workers == 1:
        return 0
    held = HALF if plan.stored == "bf16" and plan.strategy.startswith("zero") else FLOAT
    match plan.strategy:
        case "ddp":
            return plan.trained_bytes * sizes.trained
        case "fsdp2":
            # Two layers, the one that computes and the next one, what is outside of layers, and a layer's gradients.
            gradients = sizes.layer if plan.finetuning == "full" else 0
            held = plan.trained_bytes if plan.finetuning == "full" else plan.frozen_bytes
            return held * (2 * sizes.layer + sizes.outside + gradients)
        case "zero3":
            return held * (2 * sizes.layer + min(BUCKET, sizes.trained))
    return held * min(BUCKET, sizes.trained) * 2


def _of_attention(plan: MemoryPlan) -> int:
    """Bytes that kernels of attention need for a moment.

    They are not seen from outside. By documents: queries, keys and values, and their gradients, in parts beside the
    whole. "eager": scores of a layer. Ranks that compute a row together send and receive these.
    """
    config, size = model_config(plan.model, plan.vocab_size), HALF if plan.dtype == "bf16" else FLOAT
    tokens = plan.per_device_batch * plan.own_tokens
    if plan.attn == "eager":
        return size * tokens * plan.seq_len * int(config.num_attention_heads)
    parts = 0 if plan.on_gpu or plan.attn == "sdpa" else 6
    exchanged = 6 if plan.context_parallel > 1 else 0
    return (parts + exchanged) * size * tokens * int(config.hidden_size)


def _of_optimizer(plan: MemoryPlan, sizes: ModelSizes) -> int:
    """Bytes that the optimizer needs for a moment.

    AdamW is one kernel on a GPU, and goes tensor by tensor on a CPU: the root of a moment, and the quotient. With
    weights in bf16 it goes block by block there: gradient, weight, root, and noise of float32.
    """
    if plan.on_gpu or (plan.trained_bytes == FLOAT and plan.strategy.startswith("zero")):
        return 0
    return 8 * FLOAT * min(BLOCK, sizes.largest) if plan.trained_bytes == HALF else 2 * FLOAT * sizes.largest


@cache
def _sizes(name: str, vocab_size: int, head: Head, new_tokens: int, adapter: Lora | None) -> ModelSizes:
    config = model_config(name, vocab_size, head=head, new_tokens=new_tokens)
    model = skeleton(config, adapter and adapter.explicit(skeleton(config)))
    layers = decoder_layers(model)
    return ModelSizes(
        total=num_parameters(model),
        has_experts=has_experts(model),
        trained=num_parameters(model, trained_only=True),
        layer=max(map(num_parameters, layers)),
        outside=num_parameters(model) - num_parameters(layers),
        linear=over_layers(config, _linear_weights),
        largest=max(each.numel() for each in model.parameters() if each.requires_grad),
        output=skeleton(with_layers(config, 1)).get_output_embeddings().weight.numel(),  # type: ignore[operator]
    )


def _linear_weights(config: Any) -> int:
    """Number of weights in linear layers and experts, without the output layer."""
    model: Any = skeleton(config)
    head = model.get_output_embeddings()
    layers = [each.weight for each in model.modules() if isinstance(each, nn.Linear) and each is not head]
    stacks = [module.get_parameter(own) for _, module, own in expert_weights(model)]
    return sum(each.numel() for each in (*layers, *stacks))


def _passes(plan: MemoryPlan) -> list[Peak]:
    # Without a dense mask, all implementations that are fused keep as much.
    options = PassOptions(
        rows=plan.per_device_batch,
        seq_len=plan.own_tokens,
        attn=plan.attn if plan.attn in {"eager", "sdpa"} else "fused",
        is_bf16=plan.dtype == "bf16",
        checkpointing=plan.gradient_checkpointing,
        loss_chunk=plan.loss_chunk,
        accumulates=plan.accumulates,
        is_quantized=plan.finetuning == "qlora",
        frozen=torch.bfloat16 if plan.frozen_bytes == HALF else torch.float32,
        trained=torch.bfloat16 if plan.pass_bytes == HALF else torch.float32,
        # One layer's activations at a time are as many without its split, and what 4 bits are unpacked to is not kept.
        is_compiled=plan.compile and not plan.gradient_checkpointing and plan.finetuning != "qlora",
    )
    try:
        return _counted(plan.model, plan.vocab_size, plan.head, plan.new_tokens, plan.adapter, options)
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        if options.is_compiled:  # `torch.compile` would split such a layer, and keep up to as much as without
            return _passes(replace(plan, compile=False))
        raise InvalidOption(
            f"activations of model={plan.model!r} cannot be counted without data ({type(error).__name__}: {error}). "
            "check_memory=False leaves the check out."
        ) from error


@cache
def _counted(
    model: str, vocab_size: int, head: Head, new_tokens: int, adapter: Lora | None, options: PassOptions
) -> list[Peak]:
    return count_pass(model_config(model, vocab_size, head=head, new_tokens=new_tokens), adapter, options)
