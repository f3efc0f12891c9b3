"""Adapters: a few trained weights beside a frozen model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from torch import nn

from forebay.errors import InvalidOption, whole_number
from forebay.runtime.extras import extra_package

_FLAG = "_disable_adapters"
ALL_LINEAR = "all-linear"
"""Targets: every linear layer but the last one, which gives the logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Low-rank adapter (LoRA), by the peft library.

    Hu et al. 2021, arXiv 2106.09685.

    Attributes:
        r: Rank.
        alpha: The adapter's output is scaled by `alpha / r`.
        dropout: Share of the adapter's inputs that are dropped in training.
        targets: Names of the layers, also as text: "q_proj,v_proj". Or "all-linear".
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
        if not 0 <= self.dropout < 1:
            raise InvalidOption(f"lora_dropout={self.dropout} is not a share. Give 0 or more, below 1.")

    @property
    def scale(self) -> float:
        """Factor of the adapter's output."""
        return self.alpha / (math.sqrt(self.r) if self.rslora else self.r)

    def add_to(self, model: nn.Module) -> nn.Module:
        """Model with the adapter, in which nothing else is trained.

        Raises `InvalidOption` for targets that match no layer, or without peft.
        """
        is_tied = self.ties_embedding(model)
        config = self.peft_config(self.targets, is_tied=is_tied)
        import peft  # noqa: PLC0415 - an extra, which takes seconds to import

        for target in () if isinstance(self.targets, str) else self.targets:
            found = [each for name, each in model.named_modules() if name == target or name.endswith(f".{target}")]
            # peft is content if one of several matches.
            if not found:
                raise self._unmatched(model, target, "no layer has that name")
            if isinstance(found[0], nn.Embedding):
                raise InvalidOption(
                    f"lora_targets={targets_text(self)}: {target!r} is no linear layer, but an embedding. Train it "
                    f"whole: modules_to_save={target}.",
                    option="lora_targets",
                )
        try:
            adapted: Any = peft.get_peft_model(model, config)
        except ValueError as error:
            raise self._unmatched(model, self.targets, str(error)) from error
        trained: nn.Module = adapted
        return trained

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
                near = get_close_matches(name, leaves, n=1)
                meant = f" Did you mean {near[0]!r}?" if near else ""
                raise InvalidOption(
                    f"modules_to_save={','.join(self.modules_to_save)}: {name!r} matches no layer of the model.{meant} "
                    f"It has {', '.join(filter(None, leaves))}.",
                    option="modules_to_save",
                )
            if self.targets == ALL_LINEAR and any(
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
        near = get_close_matches(str(target), layers, n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        return InvalidOption(
            f"lora_targets={targets_text(self)}: {target!r} matches no layer of the model ({why}).{meant} Its linear "
            f"layers are {', '.join(layers)}; {ALL_LINEAR!r} takes all but the last.",
            layers=layers,
        )

    def peft_config(self, targets: str | tuple[str, ...], *, is_tied: bool = False, task: str = "CAUSAL_LM") -> Any:
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
            target_modules=targets if isinstance(targets, str) else list(targets),
            modules_to_save=list(self.modules_to_save) or None,
            use_rslora=self.rslora,
            use_dora=self.dora,
            task_type=task,
            **({"ensure_weight_tying": True} if is_tied else {}),
        )


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
