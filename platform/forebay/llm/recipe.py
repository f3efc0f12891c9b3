"""Recipe of a fine-tuning: model, trained part, and options."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import nn

from forebay.errors import InvalidOption, whole_number
from forebay.llm.adapters import Lora
from forebay.llm.attention import DOCUMENTS, FLEX
from forebay.llm.context_parallel import check_exchangeable, exchange_heads
from forebay.llm.hf_folder.model_origin import ModelOrigin
from forebay.llm.loss import LIGER, LOSS_CHUNK, LossKernel, check_fused
from forebay.llm.models import ModelSpec, recomputes_activations
from forebay.llm.new_tokens import check_trained
from forebay.llm.optimizers import OptimizerName, build_optimizer, in_float32
from forebay.llm.quantization import compute_in
from forebay.llm.reward_head import output_name
from forebay.llm.source.tokenizers import TokenizerSpec
from forebay.runtime.extras import require_package

Schedule = Literal["cosine", "linear", "constant"]
"""Course of the learning rate after its warm-up: down to 0 along a cosine or a line, or constant."""
ComputeType = Literal["auto", "fp32", "bf16"]
"""Type of the computation. "auto" is bf16 on a GPU and for weights in bf16, and fp32 elsewhere."""

Weights = Literal["auto", "float32", "bf16"]
"""Type of the weights. "auto": bf16 for frozen ones where the computation is in bf16, and else float32."""

LORA_RATE, FULL_RATE = 2e-4, 2e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Options of a fine-tuning, for `llm.finetune`.

    Attributes:
        model: The model to start from.
        adapter: Adapter that is trained instead of the model. None: all of the model is trained.
        lr: Highest learning rate. None: 2e-5, with an adapter 2e-4.
        schedule: Course of the learning rate after its warm-up: "cosine", "linear" or "constant".
        warmup: Share of all rows during which the rate rises.
        weight_decay: Decay of matrices. Norms and biases never decay.
        betas: Decay of AdamW's averages.
        max_grad_norm: Norm to which the gradient is clipped.
        per_device_batch: Rows of one pass through the model. It changes memory and speed, not the result.
        dtype: Type of the computation.
        weights: Type of the weights. Those that are trained are float32, unless it is "bf16" without an adapter: then
            they are rounded at random, beside moments in float32 (`RoundedAdamW`).
        algorithm: Optimizer: "adamw", or "adamw8bit".
        tokenizer: Tokenizer of the data, for an export of what was trained.
        loss_chunk: Targets whose logits exist at a time. 0: the logits of all positions of a pass.
        router_aux_loss_coef: Weight of the loss that balances the experts of a mixture. 0: there is none.
        context_parallel: Number of ranks that compute a row together, each a part of its tokens.
        loss_kernel: "liger" computes the output layer with its loss by Liger Kernel, on GPUs.

    Raises `InvalidOption` for values that can never work.
    """

    model: ModelSpec
    adapter: Lora | None = None
    lr: float | None = None
    schedule: Schedule = "cosine"
    warmup: float = 0.03
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    max_grad_norm: float = 1.0
    per_device_batch: int = 1
    dtype: ComputeType = "auto"
    weights: Weights = "auto"
    algorithm: OptimizerName = "adamw"
    tokenizer: TokenizerSpec | None = None
    loss_chunk: int = LOSS_CHUNK
    router_aux_loss_coef: float = 0.0
    context_parallel: int = 1
    loss_kernel: LossKernel = "torch"

    def __post_init__(self) -> None:
        whole_number("per_device_batch", self.per_device_batch, least=1)
        whole_number("loss_chunk", self.loss_chunk, least=0)
        whole_number("context_parallel", self.context_parallel, least=1)
        self._check_rows_and_kernel()
        for option, known in (
            ("schedule", Schedule),
            ("dtype", ComputeType),
            ("weights", Weights),
            ("algorithm", OptimizerName),
            ("loss_kernel", LossKernel),
        ):
            value = getattr(self, option)
            if value not in get_args(known):
                choices = ", ".join(map(repr, get_args(known)))
                name = "optimizer" if option == "algorithm" else option
                raise InvalidOption(f"{name}={value!r} is unknown. Choose one of {choices}.", option=name)
        self._check_numbers()
        if self.model.quantization is not None and self.adapter is None:
            raise InvalidOption(
                f"quantization={self.model.quantization!r} without an adapter trains nothing: 4-bit weights are "
                "frozen. Give adapter=llm.Lora(...) (finetuning=qlora), or leave quantization out (finetuning=full)."
            )
        if self.weights == "bf16" and self.dtype == "fp32":
            raise InvalidOption("weights='bf16' cannot compute in dtype='fp32'. Set dtype='bf16', or leave it out.")
        if self.weights == "bf16" and self.adapter is None and self.algorithm != "adamw":
            raise InvalidOption(
                f"optimizer={self.algorithm!r} rounds weights in bf16 to the nearest, which loses small steps. Set "
                "optimizer='adamw', or weights='float32'."
            )
        if self.algorithm == "adamw8bit":
            require_package("bitsandbytes", "bitsandbytes", f"optimizer={self.algorithm!r}")
        if not 0 <= self.warmup <= 1:
            raise InvalidOption(f"warmup={self.warmup} is not a share of the rows. Give 0 to 1.", option="warmup")

    def _check_numbers(self) -> None:
        """Raise `InvalidOption` for numbers that cannot train."""
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise InvalidOption(f"lr={self.lr} cannot train. Give a number above 0.", option="lr")
        if not self.max_grad_norm > 0:  # inf clips nothing
            raise InvalidOption(
                f"max_grad_norm={self.max_grad_norm} cannot train. Give a number above 0.", option="max_grad_norm"
            )
        for option in ("weight_decay", "router_aux_loss_coef"):
            value = getattr(self, option)
            if not 0 <= value < math.inf:
                raise InvalidOption(f"{option}={value} cannot train. Give 0 or more, such as 0.01.", option=option)
        if not all(0 <= each < 1 for each in self.betas):
            raise InvalidOption(f"betas={self.betas} cannot train. Give two numbers of 0 or more, below 1.")

    def _check_rows_and_kernel(self) -> None:
        """Raise `InvalidOption` for what shared rows and a fused loss cannot be used with."""
        head = {f"a model with the head {self.model.head!r}": self.model.head != "tokens"}
        routers = {f"router_aux_loss_coef={self.router_aux_loss_coef}": self.router_aux_loss_coef > 0}
        if self.context_parallel > 1:
            attention = {f"attn={self.model.attn!r}": self.model.attn not in ("auto", DOCUMENTS, FLEX)}
            compiled = {f"compile={self.model.compile}": self.model.compile}
            _refuse(f"context_parallel={self.context_parallel}", attention | compiled | head | routers)
        if self.loss_kernel == LIGER:
            require_package("liger-kernel", "liger_kernel", f"loss_kernel={LIGER!r}")
            _refuse(f"loss_kernel={LIGER!r}", {"loss_chunk=0": not self.loss_chunk} | head | routers)

    @property
    def highest_rate(self) -> float:
        """Highest learning rate."""
        return self.lr if self.lr is not None else FULL_RATE if self.adapter is None else LORA_RATE

    def origin(self, seed: int) -> ModelOrigin:
        """Origin of the model trained with `seed`.

        For `worker.track(model_origin=...)`.
        """
        return ModelOrigin(model=self.model, adapter=self.adapter, tokenizer=self.tokenizer, seed=seed)

    def build_model(self, device: torch.device | str) -> nn.Module:
        """Model with its adapter, on the CPU, in training mode.

        Its attention and its checkpointing suit a training on `device`: `worker.device`.
        """
        model = self.build_base(device)
        if self.loss_kernel == LIGER and torch.device(device).type != "cuda":
            raise InvalidOption(
                f"loss_kernel={LIGER!r} runs on GPUs only, and this worker trains on {torch.device(device).type}. Set "
                "loss_kernel='torch', or give it a GPU.",
                option="loss_kernel",
            )
        built = model if self.adapter is None else in_float32(self.adapter_of(model).add_to(model))
        if self.loss_kernel == LIGER:
            check_fused(built)
        return built

    def adapter_of(self, model: Any) -> Lora:
        """Adapter of a base: beside a reward head, which is trained whole."""
        assert self.adapter is not None, "the recipe has one"
        if self.model.quantization is not None:
            self._check_quantized(model)
        adapter = self.adapter
        if self.model.head == "reward":
            saved = (*adapter.modules_to_save, output_name(model))
            adapter = replace(adapter, modules_to_save=tuple(dict.fromkeys(saved)))
        if self.model.new_tokens:
            check_trained(adapter, model)
        return adapter

    def _check_quantized(self, model: Any) -> None:
        """Raise `InvalidOption` for layers that are trained whole, and are frozen in 4 bits."""
        assert self.adapter is not None, "the recipe has one"
        whole, output = self.adapter.modules_to_save, model.get_output_embeddings()
        for path, each in model.named_modules():
            name = path.rpartition(".")[2]
            if isinstance(each, nn.Linear) and each is not output and {name, path}.intersection(whole):
                raise InvalidOption(
                    f"modules_to_save names {name!r}, whose weights are in 4 bits (finetuning=qlora) and cannot be "
                    "trained. Let the adapter train it (lora_targets), or set finetuning=lora.",
                    option="modules_to_save",
                )

    def build_base(self, device: torch.device | str) -> nn.Module:
        """The same without its adapter."""
        device = torch.device(device)
        spec, ranks = self.model, self.context_parallel
        if ranks > 1 and spec.attn == "auto" and device.type == "cuda":
            spec = replace(spec, attn="flex_attention")
        model: Any = spec.build(device, self.weight_type(device))
        if ranks > 1:
            check_exchangeable(model, ranks)
            exchange_heads(model)
        if self.model.quantization is not None:
            compute_in(model, self.compute_type(device))
        built: nn.Module = model
        return built

    def optimizer(self, parameters: Iterable[nn.Parameter], *, seed: int = 0) -> torch.optim.Optimizer:
        """Optimizer of the trained parameters. Only matrices decay.

        `seed` is of the noise that rounds weights in bf16. Raises as `build_optimizer`.
        """
        trained = [each for each in parameters if each.requires_grad]
        groups = [
            {"params": [each for each in trained if each.dim() >= 2], "weight_decay": self.weight_decay},
            {"params": [each for each in trained if each.dim() < 2], "weight_decay": 0.0},
        ]
        used = [each for each in groups if each["params"]]
        return build_optimizer(self.algorithm, used, lr=self.highest_rate, betas=self.betas, seed=seed)

    def rate(self, share: float) -> float:
        """Learning rate after `share` of the training."""
        return self.highest_rate * rate_factor(share, warmup=self.warmup, schedule=self.schedule)

    def compute_type(self, device: torch.device) -> torch.dtype:
        """Type in which the model computes on `device`."""
        is_bf16 = self.dtype == "bf16" or (self.dtype == "auto" and (device.type == "cuda" or self.weights == "bf16"))
        return torch.bfloat16 if is_bf16 else torch.float32

    def weight_type(self, device: torch.device) -> torch.dtype:
        """Type in which the model is loaded.

        An adapter is float32 beside it.
        """
        is_bf16 = self.weights == "bf16" or (
            self.weights == "auto" and self.adapter is not None and self.compute_type(device) == torch.bfloat16
        )
        return torch.bfloat16 if is_bf16 else torch.float32

    def evaluating(self, device: torch.device) -> AbstractContextManager[object]:
        """Block in which the model is evaluated.

        In float32 if its weights are, and else in the recipe's type.
        """
        return nullcontext() if self.weight_type(device) == torch.float32 else self.autocast(device)

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Block in which the model computes in the recipe's type.

        Layers that are computed again get their copies of weights again: kept until the end of the forward pass, they
        would take 2 bytes a parameter on each rank, 128 GiB of a Llama 2 70B that fsdp2 or zero3 splits.
        """
        dtype = self.compute_type(device)
        keeps_copies = not recomputes_activations(self.model.gradient_checkpointing, device)
        return (
            nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype, cache_enabled=keeps_copies)
        )


def _refuse(option: str, others: Mapping[str, bool]) -> None:
    """Raise `InvalidOption` for an option and the first of `others` that is given."""
    if found := [name for name, is_given in others.items() if is_given]:
        raise InvalidOption(
            f"{option} does not work with {found[0]}. Leave one of them out.", option=option.partition("=")[0]
        )


def rate_factor(share: float, *, warmup: float, schedule: Schedule) -> float:
    """Factor of the highest learning rate, 0 to 1.

    After `share` of all rows. It rises during the share `warmup`.

    A function of rows: neither another batch nor another world stretches it. For batches of equal size it equals the
    schedulers of the transformers library.

    >>> [rate_factor(share, warmup=0.5, schedule="linear") for share in (0, 0.25, 0.5, 0.75, 1)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if share < warmup:
        return share / warmup
    left = (1 - share) / (1 - warmup) if warmup < 1 else 0.0
    match schedule:
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * (1 - left)))
        case "linear":
            return left
        case "constant":
            return 1.0
