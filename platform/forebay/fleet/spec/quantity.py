"""Quantities of Kubernetes: `500m` CPUs, `96Gi` bytes."""

from __future__ import annotations

import functools
import math
import re
from decimal import Decimal

from forebay.errors import InvalidOption

_SUFFIXES: dict[str, Decimal] = {
    "": Decimal(1),
    **{
        letter: Decimal(10) ** power
        for letter, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)
    },
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}
# Kubernetes has no number of more than 63 bits. An exponent of six digits would take minutes to write out.
_FORM = re.compile(r"\+?([0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,2}|[numkMGTPE]|[KMGTPE]i|)")
_BYTES = re.compile(r"[kMGTPE]|[KMGTPE]i")


@functools.lru_cache(maxsize=4096)
def quantity(text: str) -> Decimal:
    """Return the number of a quantity.

    Raises `InvalidOption` for a text that Kubernetes would refuse. Source:
    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity.

    >>> quantity("500m"), quantity("2Ki"), quantity("1e3")
    (Decimal('0.500'), Decimal('2048'), Decimal('1E+3'))
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise InvalidOption(
            f"{text!r} is not a quantity of Kubernetes. Write a number with a suffix, for example 500m or 96Gi.",
            quantity=text,
        )
    number, suffix = match.groups()
    return Decimal(number) * _SUFFIXES[suffix] if suffix in _SUFFIXES else Decimal(number + suffix)


def nbytes(text: str) -> int:
    """Return the bytes of a quantity, rounded up."""
    return math.ceil(quantity(text))


def millicpus(text: str) -> int:
    """Return the millicpus of a quantity, rounded up."""
    return math.ceil(quantity(text) * 1000)


def cpu_text(value: object) -> str:
    """Return CPUs in canonical form, up to 10,000.

    >>> cpu_text(12), cpu_text("12000m"), cpu_text(0.5)
    ('12', '12', '500m')
    """
    thousandths = millicpus(str(value)) if isinstance(value, str | int | float) and not isinstance(value, bool) else 0
    if not 0 < thousandths <= 10_000_000:
        raise ValueError(f"{value!r} CPUs cannot run a worker; give a number above 0, for example 12 or 500m")
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


def bytes_quantity(value: object) -> str:
    """Return a checked quantity of bytes, like `96Gi`."""
    text = str(value)
    if not isinstance(value, str) or not (match := _FORM.fullmatch(text)) or not _BYTES.fullmatch(match[2]):
        shown = text.lstrip("+-") if re.fullmatch(r"[+-]?\d+(\.\d+)?", text) else "96"
        raise ValueError(f"{text!r} has no unit of bytes; write for example {shown}Gi")
    if nbytes(text) <= 0:
        raise ValueError(f"{text!r} is not more than 0; give a number of bytes, for example 96Gi")
    return text
