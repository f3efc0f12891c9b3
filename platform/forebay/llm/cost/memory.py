"""Memory of a fine-tuning, estimated before a worker starts.

Bytes per rank, part by part.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any, Literal, TypeAlias, get_args

from torch import nn

from forebay.errors import InvalidOption, whole_number
from forebay.llm.adapters import ALL_LINEAR, Lora
from forebay.llm.cost.activations import Activations, count_activations
from forebay.llm.cost.known_models import TINY_VOCABULARY, model_config
from forebay.llm.cost.skeleton import num_parameters, over_layers, skeleton
from forebay.llm.options import Options, Tuning, with_options
from forebay.training.strategies.choice import Offload, StrategyName

Precision: TypeAlias = Literal["bf16", "fp32"]
HeldReference: TypeAlias = Literal["none", "adapter", "copy", "stored"]
_CHOICES = {"strategy": StrategyName, "offload": Offload, "finetuning": Tuning, "dtype": Precision, "stored": Precision}
_CHOICES["reference"] = HeldReference

FLOAT, HALF = 4, 2
MOMENTS = 2 * FLOAT
NF4_BYTES = 0.5 + 4 / 64
"""Bytes of a weight in NF4: 4 bits, and a scale of 32 bits for each block of 64."""
BUCKET = 50_000_000
"""Elements of DeepSpeed's buffers, as the strategies set them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Options that decide the memory of a fine-tuning.

    They have the names of `llm.Options`, with values for GPUs.

    Attributes:
        model: "tiny", a known model such as "Llama-2-70B", or a model's folder.
        workers: Number of ranks.
        dtype: Type of the computation.
        stored: Type of the weights and gradients that DeepSpeed holds. Forebay's strategies hold float32; with "bf16"
            these are the figures of DeepSpeed's own bf16 mode.
        loss_chunk: Positions whose logits exist at a time. 0: all rows of a pass.
        vocab_size: Entries of the tokenizer, for the tiny model.
        reference: "copy" for preferences beside a frozen copy of the model. Others take no memory.
        modules_to_save: Names of layers that are trained whole beside an adapter.
        dora: Whether the adapter is DoRA.
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
    stored: Precision = "fp32"
    loss_chunk: int = 1024
    vocab_size: int = TINY_VOCABULARY
    reference: HeldReference = "none"
    modules_to_save: str = ""
    dora: bool = False

    def __post_init__(self) -> None:
        for option in ("workers", "lora_r", "seq_len", "per_device_batch"):
            whole_number(option, getattr(self, option), least=1)
        whole_number("loss_chunk", self.loss_chunk, least=0)
        for option, choices in _CHOICES.items():
            if getattr(self, option) not in get_args(choices):
                known = ", ".join(map(repr, get_args(choices)))
                raise InvalidOption(f"{option}={getattr(self, option)!r} is unknown. Choose one of {known}.")
        if self.offload != "none" and not self.strategy.startswith("zero"):
            raise InvalidOption(
                f"offload={self.offload!r} needs strategy='zero1', 'zero2' or 'zero3', and strategy is "
                f"{self.strategy!r}. Set one of them, or offload='none'."
            )

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
    plan = {each.name: known[each.name] for each in fields(MemoryPlan) if each.name in known}
    dtype: Precision = "bf16" if options.dtype == "auto" else options.dtype
    more = {"dtype": dtype, "stored": stored, "vocab_size": vocab_size, "reference": reference}
    return MemoryPlan(**plan | more)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes of one rank, on device and host.

    Attributes:
        parameters: Number of the model's parameters, with its adapter.
        trained: Number of those that are trained.
        device: Bytes on the device by part: "weights", "gradients", "optimizer", "buffers", "activations", "logits".
        host: Bytes in main memory.
    """

    parameters: int
    trained: int
    device: dict[str, int]
    host: int

    @property
    def total(self) -> int:
        """Bytes on the device."""
        return sum(self.device.values())

    @property
    def states(self) -> int:
        """Bytes of weights, gradients and optimizer states on the device."""
        return sum(self.device[part] for part in ("weights", "gradients", "optimizer"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """Parameter counts of a model.

    All, trained, of one layer, outside of layers, and of the linear layers that can be NF4.
    """

    total: int
    trained: int
    layer: int
    outside: int
    linear: int

    @property
    def frozen(self) -> int:
        """Parameters that are not trained."""
        return self.total - self.trained


def estimate_memory(plan: MemoryPlan) -> MemoryEstimate:
    """Estimate the bytes of a rank.

    Weights, gradients and optimizer by formula, activations counted.

    Not in it: the CUDA context and NCCL (1 to 2 GB), and gaps of the allocator. Raises `InvalidOption` for a model that
    cannot be read.
    """
    sizes = _sizes(plan.model, plan.vocab_size, plan.adapter)
    kept = _activations(plan)
    weights, gradients, optimizer = _states(plan, sizes)
    is_offloaded = plan.offload == "optimizer"
    device = {
        "weights": weights + (_reference(plan, sizes) if plan.reference == "copy" else 0),
        "gradients": gradients,
        "optimizer": 0 if is_offloaded else optimizer,
        "buffers": _buffers(plan, sizes) + kept.copies,
        "activations": kept.kept,
        "logits": _logits(plan, model_config(plan.model, plan.vocab_size).vocab_size),
    }
    host = optimizer if is_offloaded else 0
    return MemoryEstimate(parameters=sizes.total, trained=sizes.trained, device=device, host=host)


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
    held = HALF if is_zero and plan.stored == "bf16" else FLOAT
    # DeepSpeed keeps a float32 copy of what the optimizer changes, also beside weights in float32.
    per_trained = MOMENTS + (FLOAT if is_zero else 0)
    frozen = held * sizes.frozen
    if plan.finetuning == "qlora":
        frozen = held * (sizes.frozen - sizes.linear) + round(NF4_BYTES * sizes.linear)
    weights, gradients, optimizer = held * sizes.trained + frozen, held * sizes.trained, per_trained * sizes.trained
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
            return FLOAT * sizes.trained
        case "fsdp2":
            # Two layers, the one that computes and the next one, what is outside of layers, and a layer's gradients.
            gradients = sizes.layer if plan.finetuning == "full" else 0
            return FLOAT * (2 * sizes.layer + sizes.outside + gradients)
        case "zero3":
            return held * (2 * sizes.layer + min(BUCKET, sizes.trained))
    return held * min(BUCKET, sizes.trained) * 2


def _logits(plan: MemoryPlan, entries: int) -> int:
    """Bytes of the logits.

    In the type of the computation, in float32, and their gradient.
    """
    positions = plan.per_device_batch * plan.seq_len
    if plan.loss_chunk:
        positions = min(positions, plan.loss_chunk)
    return positions * entries * ((HALF if plan.dtype == "bf16" else FLOAT) + FLOAT + FLOAT)


@cache
def _sizes(name: str, vocab_size: int, adapter: Lora | None) -> ModelSizes:
    config = model_config(name, vocab_size)
    model = skeleton(config, adapter)
    layers: Any = max((each for each in model.modules() if isinstance(each, nn.ModuleList)), key=num_parameters)
    return ModelSizes(
        total=num_parameters(model),
        trained=num_parameters(model, trained_only=True),
        layer=num_parameters(layers[0]),
        outside=num_parameters(model) - num_parameters(layers),
        linear=over_layers(config, _linear_weights),
    )


def _linear_weights(config: Any) -> int:
    """Number of weights in linear layers, without the output layer."""
    model: Any = skeleton(config)
    head = model.get_output_embeddings()
    return sum(each.weight.numel() for each in model.modules() if isinstance(each, nn.Linear) and each is not head)


def _activations(plan: MemoryPlan) -> Activations:
    # All implementations that are fused keep as much as sdpa.
    attn = "eager" if plan.attn == "eager" else "sdpa"
    shape = (plan.per_device_batch, plan.seq_len)
    options = (plan.dtype == "bf16", plan.gradient_checkpointing)
    try:
        return _counted(plan.model, plan.vocab_size, plan.adapter, shape, attn, *options)
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        raise InvalidOption(
            f"activations of model={plan.model!r} cannot be counted without data ({type(error).__name__}: {error}). "
            "check_memory=False leaves the check out."
        ) from error


@cache
def _counted(
    model: str, vocab_size: int, adapter: Lora | None, shape: tuple[int, int], attn: str, *options: bool
) -> Activations:
    is_bf16, checkpointing = options
    return count_activations(
        model_config(model, vocab_size), adapter, shape, attn=attn, is_bf16=is_bf16, checkpointing=checkpointing
    )
