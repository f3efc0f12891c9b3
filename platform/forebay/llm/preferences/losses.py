"""Losses of preferences. Pure functions of the scores of answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from torch import Tensor
from torch.nn import functional

from forebay.errors import InvalidOption

LossName: TypeAlias = Literal["dpo", "dpo_norm", "ipo", "simpo", "kto", "reward"]
ReferenceKind: TypeAlias = Literal["auto", "adapter", "copy", "stored"]
"""The model without its adapter, a frozen copy, or stored log-probabilities. "auto" is the first that works."""

_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "dpo": {"beta": 0.1},
    "dpo_norm": {"beta": 5.0},
    "ipo": {"beta": 0.1},
    "simpo": {"beta": 2.0, "gamma": 0.5},
    "kto": {"beta": 0.1, "desirable_weight": 1.0, "undesirable_weight": 1.0},
    "reward": {},
}
"""Numbers of each loss, with their defaults."""
_NUMBERS = ("beta", "gamma", "desirable_weight", "undesirable_weight")
WITHOUT_REFERENCE = ("simpo", "reward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """Options of a training on preferences.

    None stands for the default of the loss.

    Attributes:
        loss: "dpo", "dpo_norm", "ipo" or "simpo" on pairs of answers, "kto" on answers with labels, or "reward" to
            train a reward model on pairs.
        reference: Model that the losses but "simpo" and "reward" compare with: the model without its "adapter", a
            frozen "copy" of the start, or its "stored" log-probabilities. "auto": "adapter", and "copy" without one.
        beta: Weight of the reference: a larger one stays closer to it. 0.1, 5 for "dpo_norm", 2 for "simpo".
        gamma: Margin of "simpo". 0.5.
        desirable_weight: Weight of the desired answers of "kto". 1.
        undesirable_weight: Weight of the other answers of "kto". 1.

    Raises `InvalidOption` for values that can never work.
    """

    loss: LossName = "dpo"
    reference: ReferenceKind = "auto"
    beta: float | None = None
    gamma: float | None = None
    desirable_weight: float | None = None
    undesirable_weight: float | None = None

    def __post_init__(self) -> None:
        for option, known in (("loss", LossName), ("reference", ReferenceKind)):
            value = getattr(self, option)
            if value not in get_args(known):
                choices = ", ".join(map(repr, get_args(known)))
                raise InvalidOption(f"{option}={value!r} is unknown. Choose one of {choices}.", option=option)
        for option in _NUMBERS:
            value = getattr(self, option)
            if value is None:
                continue
            if option not in _DEFAULTS[self.loss]:
                others = ", ".join(repr(name) for name, numbers in _DEFAULTS.items() if option in numbers)
                raise InvalidOption(
                    f"{option}={value} is not a number of loss={self.loss!r}, but of {others}. Leave it out.",
                    option=option,
                )
            if not (0 <= value < float("inf") if option == "gamma" else 0 < value < float("inf")):
                raise InvalidOption(
                    f"{option}={value} cannot train. Give a number above 0, such as 0.1.", option=option
                )
        if self.reference != "auto" and not self.has_reference:
            raise InvalidOption(
                f"reference={self.reference!r}: loss={self.loss!r} compares with no reference. Leave it out.",
                option="reference",
            )

    @property
    def has_reference(self) -> bool:
        """Whether the loss compares with a reference."""
        return self.loss not in WITHOUT_REFERENCE

    @property
    def has_copy(self) -> bool:
        """Whether a second model is in memory. "auto" must be resolved."""
        return self.has_reference and self.reference == "copy"

    @property
    def is_stored(self) -> bool:
        """Whether log-probabilities of the reference are in the rows."""
        return self.has_reference and self.reference == "stored"

    def number(self, name: str) -> float:
        """Value of a number of the loss, given or its default."""
        given: float | None = getattr(self, name)
        return _DEFAULTS[self.loss][name] if given is None else given

    def resolved(self, *, has_adapter: bool) -> Preferences:
        """Copy with the kind of reference that "auto" stands for.

        Raises `InvalidOption` for the model without an adapter that there is not.
        """
        if not self.has_reference:
            return self
        if self.reference == "adapter" and not has_adapter:
            raise InvalidOption(
                "reference='adapter' is the model without its adapter, and all of the model is trained. Set "
                "reference='copy' (memory for a second model) or 'stored' (a pass over the data before), or "
                "finetuning=lora.",
                option="reference",
            )
        kind: ReferenceKind = ("adapter" if has_adapter else "copy") if self.reference == "auto" else self.reference
        return replace(self, reference=kind)

    def facts(self) -> dict[str, Any]:
        """Facts that a resumed run must share."""
        numbers = {name: self.number(name) for name in _DEFAULTS[self.loss]}
        return {"loss": self.loss, **numbers, **({"reference": self.reference} if self.has_reference else {})}


class AnswerScores(NamedTuple):
    """Scores of the two texts of each pair, in order.

    Attributes:
        values: Log-probability of each text's targets, or its reward, float64 [pairs, 2].
        lengths: Number of its targets, float64 [pairs, 2].
    """

    values: Tensor
    lengths: Tensor


def gains(preferences: Preferences, policy: AnswerScores, reference: Tensor | None) -> Tensor:
    """Gain of each preferred answer over the other one, float64 [pairs].

    Of log-ratios to the reference, whose values are [pairs, 2]. "dpo_norm", "ipo" and "simpo" divide by the lengths.
    """
    each = policy.values if reference is None else policy.values - reference
    if preferences.loss in ("dpo_norm", "ipo", "simpo"):
        each = each / policy.lengths
    return each[:, 0] - each[:, 1]


def pair_losses(preferences: Preferences, gained: Tensor) -> Tensor:
    """Loss of each pair, from the gains.

    - "dpo": `-log sigmoid(beta * gain)`. Rafailov et al. 2023, arXiv 2305.18290. "dpo_norm" is the same, with
      log-ratios per token: Lambert et al. 2024, arXiv 2411.15124.
    - "ipo": `(gain - 1 / (2 beta))^2`. Azar et al. 2023, arXiv 2310.12036, with log-ratios per token, as in TRL.
    - "simpo": `-log sigmoid(beta * gain - gamma)`. Meng et al. 2024, arXiv 2405.14734.
    - "reward": `-log sigmoid(gain)`. Bradley and Terry 1952.
    """
    match preferences.loss:
        case "ipo":
            return (gained - 1 / (2 * preferences.number("beta"))) ** 2
        case "simpo":
            return -functional.logsigmoid(preferences.number("beta") * gained - preferences.number("gamma"))
        case "reward":
            return -functional.logsigmoid(gained)
    return -functional.logsigmoid(preferences.number("beta") * gained)


def label_losses(preferences: Preferences, log_ratios: Tensor, is_desired: Tensor, kl: float) -> Tensor:
    """Loss of each answer with a label ("kto"), float64 [answers].

    `1 - sigmoid(beta * (log-ratio - kl))`, and `1 - sigmoid(beta * (kl - log-ratio))` for one that is not desired, each
    times its weight. Ethayarajh et al. 2024, arXiv 2402.01306.
    """
    signs = is_desired.to(log_ratios.dtype) * 2 - 1
    wanted, unwanted = preferences.number("desirable_weight"), preferences.number("undesirable_weight")
    weights = is_desired * wanted + ~is_desired * unwanted
    return weights * (1 - (signs * preferences.number("beta") * (log_ratios - kl)).sigmoid())
