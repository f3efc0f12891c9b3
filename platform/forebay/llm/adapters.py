"""Adapters: a few trained weights beside a frozen model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from forebay.errors import InvalidOption, whole_number
from forebay.llm.experts import expert_weights, has_experts
from forebay.runtime.extras import extra_package
from forebay.runtime.formatting import did_you_mean

_FLAG = "_disable_adapters"
ALL_LINEAR = "all-linear"
"""Targets: every linear layer but the last one, which gives the logits. Experts of a mixture do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Low-rank adapter (LoRA), by the peft library.

    Hu et al. 2021, arXiv 2106.09685.

    Attributes:
        r: Rank.
        alpha: The adapter's output is scaled by `alpha / r`.
        dropout: Share of the adapter's inputs that are dropped in training.
        targets: Names of the layers, also as text: "q_proj,v_proj". "all-linear" is all but the last, and "experts" the
            weights of a mixture's experts: "all-linear,experts".
        modules_to_save: Names of layers that are trained whole beside it, also as text: "embed_tokens,lm_head".
        rslora: Scale by `alpha / sqrt(r)`. Kalajdzievski 2023, arXiv 2312.03732.
        dora: Train the length of each row of a weight apart from its direction. Liu et al. 2024, arXiv 2402.09353.
    """

    r: int = 16
    alpha: float = 32
    dropout: float = 0.0
    targets: str | tuple[str, ...] = ALL_LINEAR
    modules_to_save: str | tuple[str, ...] = ()
    rslora: bool = False
    dora: bool = False

    def __post_init__(self) -> None:
        whole_number("lora_r", self.r, least=1)
        if isinstance(self.targets, str) and self.targets != ALL_LINEAR:
            object.__setattr__(self, "targets", tuple(self.targets.split(",")))
        if not isinstance(self.targets, str):
            object.__setattr__(self, "targets", tuple(each.strip() for each in self.targets))
            if not self.targets or "" in self.targets:
                raise InvalidOption(
                    f"lora_targets={self.targets!r} has an empty name. Give names such as 'q_proj,v_proj'."
                )
        whole = self.modules_to_save
        names = tuple(each.strip() for each in (whole.split(",") if isinstance(whole, str) else whole))
        if "" in names and whole:
            raise InvalidOption(
                f"modules_to_save={whole!r} has an empty name. Give names such as 'embed_tokens,lm_head'."
            )
        object.__setattr__(self, "modules_to_save", names if whole else ())
        if not 0 < self.alpha < math.inf:
            raise InvalidOption(f"lora_alpha={self.alpha} cannot train. Give a number above 0, such as {2 * self.r}.")
        if not 0 <= self.dropout < 1:
            raise InvalidOption(f"lora_dropout={self.dropout} is not a share. Give 0 or more, below 1.")

    @property
    def scale(self) -> float:
        """Factor of the adapter's output."""
        return self.alpha / (math.sqrt(self.r) if self.rslora else self.r)

    def add_to(self, model: nn.Module, *, is_part: bool = False) -> nn.Module:
        """Model with the adapter, in which nothing else is trained.

        `is_part`: the model has some of its layers only, and targets may match none of them.

        Raises `InvalidOption` for targets that match no layer, or without peft.
        """
        is_tied = self.ties_embedding(model)
        self.peft_config(Targets(layers=ALL_LINEAR))  # raises without peft
        import peft  # noqa: PLC0415 - an extra, which takes seconds to import

        targets = self.targets_in(model, is_part=is_part)
        config = self.peft_config(targets, is_tied=is_tied)
        try:
            adapted: Any = peft.get_peft_model(model, config)
        except ValueError as error:
            if is_part:
                return model.requires_grad_(False)
            raise self._unmatched(model, self.targets, str(error)) from error
        trained: nn.Module = adapted
        return trained

    def explicit(self, model: nn.Module) -> Lora:
        """The same adapter by the names of `model`, which also suit a part of its layers."""
        targets = self.targets_in(model)
        names = targets.layers if isinstance(targets.layers, str) else (*targets.layers, *targets.weights)
        return replace(self, targets=names)

    def targets_in(self, model: nn.Module, *, is_part: bool = False, is_quantized: bool = False) -> Targets:
        """Layers and weights of `model` that the targets stand for.

        "all-linear" is all linear layers but the last. Experts and routers of a mixture do not count: "experts" names
        the weights of all experts, and "gate" is a router in most architectures. `is_quantized`: linear layers and
        experts will be held in 4 bits.

        Raises `InvalidOption` for a target that matches nothing, and for one that peft cannot adapt.
        """
        if self.targets == ALL_LINEAR and not has_experts(model):
            return Targets(layers=ALL_LINEAR)
        quantized = [*_linear_weights(model), *_stacks(model)] if is_quantized else []
        layers: dict[str, None] = {}
        weights: dict[str, None] = {}
        taken = taken_for_experts(model)
        for target in (self.targets,) if isinstance(self.targets, str) else self.targets:
            if target == ALL_LINEAR:
                layers |= dict.fromkeys(each for each in _linear_layers(model) if each not in taken)
                continue
            found = [each for name, each in model.named_modules() if is_named(name, target)]
            stacks = [own for _, module, own in expert_weights(model) if module in found]
            if stacks:
                weights |= dict.fromkeys(f"{target}.{own}" for own in stacks)
            elif found and all(_is_router(each) for each in found):
                weights[f"{target}.weight"] = None
            elif found and isinstance(found[0], nn.Embedding):
                raise InvalidOption(
                    f"lora_targets={targets_text(self)}: {target!r} is no linear layer, but an embedding. Train it "
                    f"whole: modules_to_save={target}.",
                    option="lora_targets",
                )
            elif found:
                layers[target] = None
            elif any(is_named(name, target) for name, _ in model.named_parameters()):
                weights[target] = None
            elif not is_part:
                raise self._unmatched(model, target, "no layer has that name")
        self._check_adaptable(model, Targets(layers=tuple(layers), weights=tuple(weights)), taken, quantized)
        return Targets(layers=tuple(layers), weights=tuple(weights))

    def _check_adaptable(self, model: nn.Module, targets: Targets, taken: set[str], quantized: list[str]) -> None:
        text = f"lora_targets={targets_text(self)}"
        for layer in targets.layers:
            if layer.rpartition(".")[2] in taken:
                raise InvalidOption(
                    f"{text}: peft takes {layer!r} of {type(model).__name__} for the experts, also where it is a layer "
                    f"of its own. Name the layer's weight, such as '{layer}.weight', or the experts: 'experts'."
                )
        for weight in targets.weights:
            if self.dora:
                raise InvalidOption(
                    f"dora=True: peft has none for {weight!r}, a weight that is no layer of its own. Set dora=False, "
                    f"or leave it out of {text}."
                )
            if self.dropout:
                raise InvalidOption(
                    f"lora_dropout={self.dropout}: peft has no dropout for {weight!r}, a weight that is no layer of "
                    f"its own. Set lora_dropout=0, or leave it out of {text}."
                )
            if any(is_named(each, weight) for each in quantized):
                raise InvalidOption(
                    f"{text}: {weight!r} is held in 4 bits, and peft adapts no such weight. Leave it out of "
                    "lora_targets, or set finetuning=lora."
                )

    def ties_embedding(self, model: Any) -> bool:
        """Whether a layer that is trained whole is the embedding of a tied output.

        Raises `InvalidOption` for a name that matches no layer, and for one that another option trains.
        """
        modules = dict(model.named_modules())
        saved = {
            name: [each for path, each in modules.items() if path == name or path.endswith(f".{name}")]
            for name in self.modules_to_save
        }
        for name, found in saved.items():
            if not found:
                leaves = sorted({path.rpartition(".")[2] for path, each in modules.items() if not [*each.children()]})
                meant = did_you_mean(name, leaves)
                raise InvalidOption(
                    f"modules_to_save={','.join(self.modules_to_save)}: {name!r} matches no layer of the model.{meant} "
                    f"It has {', '.join(filter(None, leaves))}.",
                    option="modules_to_save",
                )
            if (self.targets == ALL_LINEAR or ALL_LINEAR in self.targets) and any(
                _is_linear(each) and each is not model.get_output_embeddings() for each in found
            ):
                raise InvalidOption(
                    f"modules_to_save and lora_targets both train {name!r}: 'all-linear' takes all linear layers but "
                    "the last. Name the others in lora_targets.",
                    option="modules_to_save",
                )
            if not isinstance(self.targets, str) and name in self.targets:
                raise InvalidOption(
                    f"modules_to_save and lora_targets both name {name!r}. Leave it out of one of them.",
                    option="modules_to_save",
                )
        if not saved or not getattr(model.config, "tie_word_embeddings", False):
            return False
        whole = [each for found in saved.values() for each in found]
        has_embedding, has_output = (
            any(each is wanted for each in whole)
            for wanted in (model.get_input_embeddings(), model.get_output_embeddings())
        )
        if has_output and not has_embedding:
            raise InvalidOption(
                f"modules_to_save={','.join(self.modules_to_save)}: the output layer of this model is its embedding "
                "(tie_word_embeddings). Name the embedding instead, and both are trained as one.",
                option="modules_to_save",
            )
        return has_embedding

    def _unmatched(self, model: nn.Module, target: object, why: str) -> InvalidOption:
        layers = sorted({name.rpartition(".")[2] for name, each in model.named_modules() if _is_linear(each)})
        meant = did_you_mean(str(target), layers)
        return InvalidOption(
            f"lora_targets={targets_text(self)}: {target!r} matches no layer of the model ({why}).{meant} Its linear "
            f"layers are {', '.join(layers)}; {ALL_LINEAR!r} takes all but the last.",
            layers=layers,
        )

    def peft_config(self, targets: Targets, *, is_tied: bool = False, task: str = "CAUSAL_LM") -> Any:
        """Configuration of peft for `targets`.

        `is_tied` keeps an embedding that is trained whole and its output layer the same.

        Raises `InvalidOption` without peft.
        """
        with extra_package("peft", "An adapter"):
            import peft  # noqa: PLC0415 - an extra, which takes seconds to import
        return peft.LoraConfig(
            r=self.r,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=targets.layers if isinstance(targets.layers, str) else list(targets.layers),
            target_parameters=list(targets.weights) or None,
            modules_to_save=list(self.modules_to_save) or None,
            use_rslora=self.rslora,
            use_dora=self.dora,
            task_type=task,
            **({"ensure_weight_tying": True} if is_tied else {}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Parts of a model that have an adapter.

    Attributes:
        layers: Names of layers, or "all-linear".
        weights: Names of weights beside layers, such as "experts.down_proj".
    """

    layers: str | tuple[str, ...]
    weights: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StackForm:
    """Form of an adapted weight.

    Attributes:
        experts: Number of stacked matrices. 1: a single one.
        is_transposed: Whether each matrix is [inputs, outputs].
    """

    experts: int = 1
    is_transposed: bool = False


def adapted_weights(model: nn.Module, adapter: Lora) -> dict[str, tuple[str, StackForm]]:
    """Weight of `model` that each part of the adapter belongs to.

    By the part's name in a checkpoint.
    """
    import peft  # noqa: PLC0415 - an extra, which takes seconds to import

    found = {}
    prefix = "base_model.model."
    for name, layer in adapter.add_to(deepcopy(model)).named_modules():
        if isinstance(layer, peft.tuners.lora.LoraLayer):
            own = name.removeprefix(prefix)
            if isinstance(layer, peft.tuners.lora.layer.ParamWrapper):
                weight = f"{own.replace('.base_layer', '')}.{layer.parameter_name}"
                # peft (0.21) has no public name.
                is_transposed = layer.num_experts > 1 and not layer._did_swap_in_out_features  # noqa: SLF001
                found[own] = (weight, StackForm(experts=layer.num_experts, is_transposed=is_transposed))
            else:
                # A Conv1D of GPT-2 has the inputs first.
                found[own] = (f"{own}.weight", StackForm(is_transposed=getattr(layer, "fan_in_fan_out", False)))
    return found


def taken_for_experts(model: nn.Module) -> set[str]:
    """Names of linear layers that peft takes for parts of the experts.

    Where transformers stacks the experts of a base, peft (0.21) applies the names of their old layers to the stacks:
    "gate_proj" becomes a half of "gate_up_proj". It would do so for shared experts and dense layers of that name too.
    """
    if not has_experts(model):
        return set()
    import peft  # noqa: PLC0415 - an extra, which takes seconds to import
    from peft.utils import transformers_weight_conversion as conversion  # noqa: PLC0415 - as above

    def is_taken(layer: str) -> bool:
        config = peft.LoraConfig(target_modules=[layer])
        try:
            conversion.convert_peft_config_for_transformers(config, model=model, conversions=None)
        except ValueError:  # a half without the other one
            return True
        return layer not in (config.target_modules or ())

    return {layer for layer in _linear_layers(model) if is_taken(layer)}


def _linear_weights(model: nn.Module) -> list[str]:
    return [f"{name}.weight" for name, each in model.named_modules() if _is_linear(each)]


def _stacks(model: nn.Module) -> list[str]:
    return [f"{name}.{own}" for name, _, own in expert_weights(model)]


def _linear_layers(model: nn.Module) -> list[str]:
    """Last parts of the names of linear layers, without the output layer."""
    outputs = getattr(model, "get_output_embeddings", lambda: None)()
    linear = {each for name, each in model.named_modules() if _is_linear(each) and each is not outputs}
    names: dict[str, bool] = {}
    for name, each in model.named_modules():
        own = name.rpartition(".")[2]
        names[own] = names.get(own, True) and each in linear
    return [name for name, is_layer in names.items() if is_layer]


def _is_router(module: nn.Module) -> bool:
    """Whether a module of transformers holds a matrix itself."""
    own = dict(module.named_parameters(recurse=False))
    is_plain = type(module).__module__.startswith("transformers.models.") and not isinstance(module, nn.Linear)
    return is_plain and "weight" in own and own["weight"].dim() == 2


def is_named(name: str, target: str) -> bool:
    """Whether `target` is a name, or the last parts of it."""
    return name == target or name.endswith(f".{target}")


def targets_text(adapter: Lora) -> str:
    """Targets of an adapter, as written on the command line."""
    return adapter.targets if isinstance(adapter.targets, str) else ",".join(adapter.targets)


@contextmanager
def without_adapter(model: nn.Module) -> Iterator[None]:
    """Disable the adapter of `model` within the block.

    `disable_adapter` of peft changes what is trained, which a strategy must not notice. So the flag that its layers
    read is set alone: a private name of peft 0.18 to 0.21. The tests of preferences fail if it changes.
    """
    layers: list[Any] = [each for each in model.modules() if hasattr(each, _FLAG)]
    for layer in layers:
        setattr(layer, _FLAG, True)
    try:
        yield
    finally:
        for layer in layers:
            setattr(layer, _FLAG, False)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear)
