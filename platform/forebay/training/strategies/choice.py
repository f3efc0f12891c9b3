"""Strategies by name, and the options they work with.

Checked before a worker starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from forebay.errors import InvalidOption
from forebay.runtime import extras
from forebay.training.collectives.collective import Reduction

StrategyName: TypeAlias = Literal["ddp", "fsdp2", "zero1", "zero2", "zero3"]
"""Way in which ranks train one model together."""
Offload: TypeAlias = Literal["none", "optimizer"]
"""State that a strategy keeps in main memory instead of the device's."""

INSTALL = extras.PACKAGES["deepspeed"].install


def validate_choice(strategy: str, offload: str, reduction: Reduction, *, whole: Sequence[str] = ()) -> None:
    """Check a strategy against the job's other options.

    `whole` names monitors and policies of the job that read whole parameters or gradients. Raises `InvalidOption`.
    """
    for option, value, known in (("strategy", strategy, StrategyName), ("offload", offload, Offload)):
        if value not in get_args(known):
            names = ", ".join(map(repr, get_args(known)))
            raise InvalidOption(f"{option}={value!r} is unknown. Choose one of {names}.", **{option: value})
    if offload != "none" and not strategy.startswith("zero"):
        raise InvalidOption(
            f"offload={offload!r} and strategy={strategy!r} were both given. Only 'zero1', 'zero2' and 'zero3' "
            "offload. Set one of them, or offload='none'.",
            strategy=strategy,
            offload=offload,
        )
    if strategy == "ddp":
        return
    if reduction != "mean":
        raise InvalidOption(
            f"reduction={reduction!r} and strategy={strategy!r} were both given. reduction={reduction!r} needs whole "
            f"gradients, and with strategy={strategy!r} each worker holds a part of them. Set reduction='mean', or "
            "strategy='ddp'.",
            reduction=reduction,
            strategy=strategy,
        )
    if whole:
        raise InvalidOption(
            f"the job has {' and '.join(whole)}, which reads whole parameters or gradients, and with "
            f"strategy={strategy!r} each worker holds a part. Leave {' and '.join(whole)} out, or set strategy='ddp'.",
            strategy=strategy,
            what=list(whole),
        )


def require_package(strategy: str) -> None:
    """Check that the package of a strategy is installed.

    Raises `InvalidOption`, with the line that installs it.
    """
    if strategy.startswith("zero"):
        extras.require_package("deepspeed", "deepspeed", f"strategy={strategy!r}")
