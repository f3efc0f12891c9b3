"""Quantities as Kubernetes reads them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from forebay.errors import InvalidOption
from forebay.fleet.spec.quantity import bytes_quantity, cpu_text, millicpus, nbytes, quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12", 12),
        ("1.5", "1.5"),
        (".5", "0.5"),
        ("5.", 5),
        ("100m", "0.1"),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("2Ki", 2048),
        ("1.5Gi", 3 << 29),
        ("3k", 3000),
        ("1n", "1e-9"),
        ("1Ei", 1 << 60),
        ("+1", 1),
    ],
)
def test_a_quantity_is_a_number(text: str, number: object) -> None:
    assert quantity(text) == Decimal(str(number))


LONG = ("1e\u0661", "1e100", "1e999999999", "9" * 41)


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1GB", "1KI", "1Ki2", "-1", "0x10", "1e3Ki", "\u0661", *LONG])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="not a quantity"):
        quantity(text)


def test_fractions_are_rounded_up() -> None:
    assert (nbytes("0.1Ki"), millicpus("0.0001"), millicpus("1")) == (103, 1, 1000)
    assert (cpu_text("0.25"), cpu_text(2.0), bytes_quantity("1.5Ti")) == ("250m", "2", "1.5Ti")
    for value in (True, "0", 1e9, None):
        with pytest.raises(ValueError, match="CPUs"):
            cpu_text(value)
