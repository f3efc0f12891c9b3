"""Adapters: a few trained weights beside a frozen model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from torch import nn

from forebay.errors import InvalidOption, whole_number
from forebay.runtime.extras import extra_package

_ADAPTER = "default"
"""Name that peft gives to an adapter."""
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
    """

    r: int = 16
    alpha: float = 32
    dropout: float = 0.0
    targets: str | tuple[str, ...] = ALL_LINEAR

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
        if not 0 <= self.dropout < 1:
            raise InvalidOption(f"lora_dropout={self.dropout} is not a share. Give 0 or more, below 1.")

    def add_to(self, model: nn.Module) -> nn.Module:
        """Model with the adapter, in which nothing else is trained.

        Raises `InvalidOption` for targets that match no layer, or without peft.
        """
        config = self.peft_config(self.targets)
        import peft  # noqa: PLC0415 - an extra, which takes seconds to import

        names = [name for name, _ in model.named_modules()]
        for target in () if isinstance(self.targets, str) else self.targets:
            # peft is content if one of several matches.
            if not any(name == target or name.endswith(f".{target}") for name in names):
                raise self._unmatched(model, target, "no layer has that name")
        try:
            adapted: Any = peft.get_peft_model(model, config)
        except ValueError as error:
            raise self._unmatched(model, self.targets, str(error)) from error
        trained: nn.Module = adapted
        return trained

    def _unmatched(self, model: nn.Module, target: object, why: str) -> InvalidOption:
        layers = sorted({name.rpartition(".")[2] for name, each in model.named_modules() if _is_linear(each)})
        near = get_close_matches(str(target), layers, n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        return InvalidOption(
            f"lora_targets={targets_text(self)}: {target!r} matches no layer of the model ({why}).{meant} Its linear "
            f"layers are {', '.join(layers)}; {ALL_LINEAR!r} takes all but the last.",
            layers=layers,
        )

    def peft_config(self, targets: str | tuple[str, ...]) -> Any:
        """Configuration of peft for `targets`.

        Raises `InvalidOption` without peft.
        """
        with extra_package("peft", "An adapter"):
            import peft  # noqa: PLC0415 - an extra, which takes seconds to import
        return peft.LoraConfig(
            r=self.r,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=targets if isinstance(targets, str) else list(targets),
            task_type="CAUSAL_LM",
        )


def targets_text(adapter: Lora) -> str:
    """Targets of an adapter, as written on the command line."""
    return adapter.targets if isinstance(adapter.targets, str) else ",".join(adapter.targets)


@contextmanager
def without_adapter(model: nn.Module) -> Iterator[None]:
    """Disable the adapter of `model` within the block.

    The adapter is scaled by 0. `disable_adapter` of peft changes what is trained, which a strategy must not notice.
    """
    import peft  # noqa: PLC0415 - an extra, which takes seconds to import

    layers = [each for each in model.modules() if isinstance(each, peft.tuners.lora.LoraLayer)]
    for layer in layers:
        layer.set_scale(_ADAPTER, 0.0)
    try:
        yield
    finally:
        for layer in layers:
            layer.set_scale(_ADAPTER, 1.0)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear)
